package main

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// embeddedPartitions is how many partitions topics of the embedded broker get: more than one, so that
// nobody comes to count on an order over a whole topic.
const embeddedPartitions = 4

// startBroker starts a broker in this process on a port of the loopback interface, 0 for any that is
// free. It keeps its topics in dir with an fsync a batch; an empty dir keeps them in memory.
func startBroker(dir string, port int) (*kfake.Cluster, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(port), kfake.DefaultNumPartitions(embeddedPartitions), kfake.AllowAutoTopicCreation(),
	}
	if dir != "" {
		opts = append(opts, kfake.DataDir(dir), kfake.SyncWrites())
	}
	broker, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker on port %d: %w", port, err)
	}
	return broker, nil
}

// createOnDemand has the broker create every topic that somebody asks for, as brokers do with
// auto.create.topics.enable and clients that do not say no: who tries things out has no targets yet.
// The topics of except are left to whoever gives them settings.
func createOnDemand(broker *kfake.Cluster, except []string) {
	broker.ControlKey(kmsg.Metadata.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		metadata, ok := req.(*kmsg.MetadataRequest)
		if !ok {
			return nil, nil, false
		}
		metadata.AllowAutoTopicCreation = !slices.ContainsFunc(metadata.Topics, func(t kmsg.MetadataRequestTopic) bool {
			return t.Topic != nil && slices.Contains(except, *t.Topic)
		})
		return nil, nil, false
	})
}
