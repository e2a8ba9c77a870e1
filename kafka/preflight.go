package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/zap"
)

// CheckLevel says how bad a [Check] is.
type CheckLevel string

const (
	// CheckOK says that all is well.
	CheckOK CheckLevel = "ok"
	// CheckNote says that something cannot be told from outside, or that a right which Bide can do without
	// is missing.
	CheckNote CheckLevel = "note"
	// CheckWarning says that Bide runs, but not as well as it could.
	CheckWarning CheckLevel = "warning"
	// CheckError says that Bide does not run, or that messages come to harm.
	CheckError CheckLevel = "error"
)

// Check is one line of a preflight: what was looked at, and what was found.
type Check struct {
	Level CheckLevel `json:"level"`
	// Area is brokers, rights, topics, transactions, group, commits, clock or data.
	Area string `json:"area"`
	// Subject is what in the area: a topic, a group, a lane, a directory.
	Subject string `json:"subject"`
	// Text says what was found.
	Text string `json:"text"`
	// Fix are commands, each of which mends it.
	Fix []string `json:"fix,omitempty"`
}

// PreflightOptions say what [Preflight] looks at.
type PreflightOptions struct {
	Connection Connection
	// Group is the consumer group; Instance the static member id, empty where there is none yet.
	Group, Instance string
	GroupProtocol   GroupProtocol
	Mode            Mode
	// Topics are the ingress and dead-letter topics; its Create says whether Bide may make them.
	Topics TopicOptions
	// Trimmed are those ingress topics whose settled records are deleted.
	Trimmed []string
	// Targets are the topics that messages go to as far as the configuration knows; prefixes end in *.
	Targets []string
	// AnyTarget says that producers may name others.
	AnyTarget bool
	// Write has a record written to the dead-letter topic in a transaction, which is then aborted.
	Write bool
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

const (
	// contactTimeout bounds how long the first answer of a broker may take.
	contactTimeout = 12 * time.Second
	// preflightTimeout bounds all that follows.
	preflightTimeout = 45 * time.Second

	preflightRetryTimeout = 4 * time.Second
	preflightRetries      = 3
)

// Preflight asks the cluster for all that would keep Bide from working and returns what it found, problems
// and what is well. It changes nothing in the cluster, unless Write is set: rights are read where Kafka tells
// them, and otherwise found by requests that cannot take effect. It returns within a minute, and within 15
// seconds where no broker answers.
func Preflight(ctx context.Context, o PreflightOptions) []Check {
	p := &preflight{o: o, commands: newCommandLines(o.Connection.Brokers), who: "User:<bide>"}
	if o.Now == nil {
		p.o.Now = time.Now
	}
	if o.Connection.SASL.Mechanism.takesPassword() {
		p.who = "User:" + o.Connection.SASL.Username
	}
	if err := p.open(); err != nil {
		p.add(CheckError, "brokers", "connection", err.Error())
		return p.checks
	}
	defer p.cl.Close()
	if !p.contact(ctx) {
		return p.checks
	}
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	p.topicRights(ctx)
	p.groupState(ctx)
	p.transactionRights(ctx)
	p.clusterRights(ctx)
	p.topicSettings(ctx)
	p.openTransactions(ctx)
	p.commits(ctx)
	if o.Write {
		p.write(ctx)
	}
	p.clock(ctx)
	return p.checks
}

// preflight is one run of [Preflight].
type preflight struct {
	o        PreflightOptions
	cl       *kgo.Client
	commands commandLines
	who      string // the principal, as far as it is known
	checks   []Check

	brokers  []kmsg.MetadataResponseBroker
	versions map[int16]int16 // the greatest of each kind of request
	topics   map[string]*kmsg.MetadataResponseTopic
	stamps   map[string]string // message.timestamp.type of topics
	stamped  []stamp
	readable bool // the group may be described
}

func (p *preflight) add(level CheckLevel, area, subject, text string, fix ...string) {
	for i := range fix {
		fix[i] = strings.ReplaceAll(fix[i], "User:<bide>", p.who)
	}
	p.checks = append(p.checks, Check{Level: level, Area: area, Subject: subject, Text: text, Fix: fix})
}

// addAdvice adds a text that has commands in it.
func (p *preflight) addAdvice(level CheckLevel, area, subject, text string) {
	at := -1
	for _, tool := range []string{"kafka-acls.sh", "kafka-configs.sh", "kafka-topics.sh"} {
		if i := strings.Index(text, tool); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 {
		p.add(level, area, subject, text)
		return
	}
	says := strings.TrimRight(text[:at], ": ")
	for _, tail := range []string{"; run", "; allow it", ", or run"} {
		says = strings.TrimSuffix(says, tail)
	}
	p.add(level, area, subject, says, strings.Split(text[at:], "; or run: ")...)
}

func (p *preflight) open() error {
	opts, err := p.o.Connection.Options(zap.NewNop())
	if err != nil {
		return err
	}
	versions := kversion.Stable()
	// From version 6 on a group that does not exist yet is an error, which leaves out its rights.
	versions.SetMaxKeyVersion(kmsg.DescribeGroups.Int16(), 5)
	p.cl, err = kgo.NewClient(append(opts, kgo.DisableClientMetrics(), kgo.MaxVersions(versions),
		kgo.RetryTimeout(preflightRetryTimeout), kgo.RequestRetries(preflightRetries))...)
	return err
}

// contact has a broker answer.
func (p *preflight) contact(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	names := strings.Join(p.o.Connection.Brokers, ",")
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	began := time.Now()
	resp, err := req.RequestWith(ctx, p.cl)
	if err == nil {
		err = p.askVersions(ctx)
	}
	if err != nil {
		p.add(CheckError, "brokers", names, fmt.Sprintf("no broker answers as it should: %v%s", err, p.contactHint(err)))
		return false
	}
	p.brokers = resp.Brokers
	p.add(CheckOK, "brokers", names, fmt.Sprintf("answered in %v; the cluster has %d", time.Since(began).Round(time.Millisecond), len(resp.Brokers)))
	return true
}

func (p *preflight) contactHint(err error) string {
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "; check the name and the password or token (sasl.*)"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "; the brokers do not know sasl.mechanism"
	case errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded):
		return "; check that brokers and ports are right and can be reached, and that tls.enabled and sasl.mechanism are those of that port"
	}
	return ""
}

func (p *preflight) askVersions(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "bide", softwareVersion()
	resp, err := req.RequestWith(ctx, p.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return err
	}
	p.versions = make(map[int16]int16)
	for _, k := range resp.ApiKeys {
		p.versions[k.ApiKey] = k.MaxVersion
	}
	return nil
}

func (p *preflight) knows(key kmsg.Key) bool { _, ok := p.versions[key.Int16()]; return ok }

// patiently asks until the answer is none that time mends, for a few seconds at most: a new cluster has no
// coordinators until somebody asks for them.
func patiently(ctx context.Context, ask func() error) error {
	const tries, pause = 16, 500 * time.Millisecond
	for n := 1; ; n++ {
		err := ask()
		if err == nil || !kerr.IsRetriable(err) || errors.Is(err, kerr.ConcurrentTransactions) || n == tries || !rest(ctx, pause) {
			return err
		}
	}
}

// operations is a set of rights, as the bits of Kafka's answers.
type operations int32

func (o operations) known() bool                   { return o != math.MinInt32 }
func (o operations) has(op kmsg.ACLOperation) bool { return o&(1<<uint(op)) != 0 }

// right is an operation that Bide needs, and what for.
type right struct {
	op    kmsg.ACLOperation
	level CheckLevel // where it is missing
	why   string
}

// lacking sorts those of need that have lacks by level.
func lacking(have operations, need []right) map[CheckLevel][]right {
	lacks := make(map[CheckLevel][]right)
	for _, r := range need {
		if !have.has(r.op) {
			lacks[r.level] = append(lacks[r.level], r)
		}
	}
	return lacks
}

// lacks adds a check for each level of missing rights on something; flag is how kafka-acls.sh names it.
// It reports whether none was.
func (p *preflight) lacks(subject, flag string, lack map[CheckLevel][]right) bool {
	for _, level := range []CheckLevel{CheckError, CheckWarning, CheckNote} {
		if len(lack[level]) == 0 {
			continue
		}
		var names, texts []string
		for _, r := range lack[level] {
			names = append(names, operationName(r.op))
			texts = append(texts, fmt.Sprintf("%s (%s)", operationName(r.op), r.why))
		}
		p.add(level, "rights", subject, "missing "+strings.Join(texts, ", "), p.commands.grant(flag, names...))
	}
	return len(lack) == 0
}

// operationName returns an operation as kafka-acls.sh takes it.
func operationName(op kmsg.ACLOperation) string {
	if name, ok := operationNames[op]; ok {
		return name
	}
	return op.String()
}

var operationNames = map[kmsg.ACLOperation]string{
	kmsg.ACLOperationRead:            "Read",
	kmsg.ACLOperationWrite:           "Write",
	kmsg.ACLOperationDelete:          "Delete",
	kmsg.ACLOperationDescribe:        "Describe",
	kmsg.ACLOperationDescribeConfigs: "DescribeConfigs",
	kmsg.ACLOperationClusterAction:   "ClusterAction",
}

// grant takes a resource as kafka-acls.sh names it.
func (c commandLines) grant(flag string, operations ...string) string {
	return fmt.Sprintf("kafka-acls.sh --bootstrap-server %s --add --allow-principal User:<bide> --operation %s %s",
		c.bootstrap, strings.Join(operations, " --operation "), flag)
}

// ingresses returns the ingress topics that are there and may be described, in order.
func (p *preflight) ingresses() []IngressTopic {
	var there []IngressTopic
	for _, in := range p.o.Topics.Ingress {
		if p.topics[in.Name] != nil {
			there = append(there, in)
		}
	}
	return there
}

// Isolation levels of requests.
const (
	readUncommitted int8 = 0
	readCommitted   int8 = 1
)

// listed is what a partition answered to ListOffsets.
type listed struct {
	offset, ms int64
	err        error
}

// list asks for offsets of all partitions of a topic by one timestamp, which may be a special one.
func (p *preflight) list(ctx context.Context, topic string, timestamp int64, isolation int8) map[int32]listed {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for i := range p.topics[topic].Partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.CurrentLeaderEpoch, part.Timestamp = p.topics[topic].Partitions[i].Partition, -1, timestamp
		t.Partitions = append(t.Partitions, part)
	}
	req.Topics = append(req.Topics, t)
	got := make(map[int32]listed)
	last := error(kerr.LeaderNotAvailable)
	for _, shard := range p.cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			last = shard.Err
			continue
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, r := range t.Partitions {
				got[r.Partition] = listed{r.Offset, r.Timestamp, kerr.ErrorForCode(r.ErrorCode)}
			}
		}
	}
	for i := range t.Partitions {
		n := t.Partitions[i].Partition
		if _, ok := got[n]; !ok {
			got[n] = listed{-1, -1, last}
		}
	}
	return got
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	all := make([]K, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
