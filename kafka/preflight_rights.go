package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
)

// What Bide needs of a topic, by its role.
var (
	ingressRights = []right{
		{kmsg.ACLOperationRead, CheckError, "to consume"},
		{kmsg.ACLOperationWrite, CheckError, "to put back what is tried again, to carry forward what waits long"},
		{kmsg.ACLOperationDescribeConfigs, CheckWarning, "to see settings that would delete what waits"},
	}
	trimRight        = right{kmsg.ACLOperationDelete, CheckError, "to trim"}
	deadLetterRights = []right{
		{kmsg.ACLOperationWrite, CheckError, "for dead letters: a lane that has one waits until they can be written"},
		{kmsg.ACLOperationDescribeConfigs, CheckWarning, "to see how large dead letters may be"},
	}
	targetRights = []right{{kmsg.ACLOperationWrite, CheckError, "to deliver: messages for the topic become dead letters"}}
)

// topicRights looks at every topic that the configuration names, and at those that begin with a prefix of it.
func (p *preflight) topicRights(ctx context.Context) {
	p.topics = make(map[string]*kmsg.MetadataResponseTopic)
	var names []string
	for _, in := range p.o.Topics.Ingress {
		names = append(names, in.Name)
	}
	names = append(names, p.o.Topics.DeadLetter)
	var prefixes []string
	for _, t := range p.o.Targets {
		if prefix, ok := strings.CutSuffix(t, "*"); ok {
			prefixes = append(prefixes, prefix)
		} else if !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	answers, err := p.describeTopics(ctx, names)
	if err != nil {
		p.add(CheckError, "rights", "topics", fmt.Sprintf("the topics cannot be described: %v", err))
		return
	}
	for _, name := range names {
		if t := answers[name]; t != nil {
			p.judgeTopic(ctx, name, t)
		}
	}
	if len(prefixes) > 0 {
		p.prefixRights(ctx, prefixes, names)
	}
	if p.o.AnyTarget {
		p.add(CheckNote, "rights", "targets", "producers may name any topic (allow is empty): which ones cannot be told before. "+
			"What Bide may not write becomes a dead letter, target-unauthorized. List in allow what may be named, to have it checked")
	}
}

// describeTopics asks for topics with Bide's rights on them; for all that may be described where names is nil.
func (p *preflight) describeTopics(ctx context.Context, names []string) (map[string]*kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, p.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	answers := make(map[string]*kmsg.MetadataResponseTopic, len(resp.Topics))
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.Topic != nil {
			answers[*t.Topic] = t
		}
	}
	return answers, nil
}

// role returns what a topic is to Bide, what it needs of it, and how it makes one.
func (p *preflight) role(name string) (string, []right, *topicPlan) {
	o := &p.o.Topics
	if name == o.DeadLetter {
		plan := o.deadLetterPlan(0)
		return plan.role, deadLetterRights, &plan
	}
	for _, in := range o.Ingress {
		if in.Name != name {
			continue
		}
		plan := o.ingressPlan(in)
		if slices.Contains(p.o.Trimmed, name) {
			return plan.role, append(slices.Clone(ingressRights), trimRight), &plan
		}
		return plan.role, ingressRights, &plan
	}
	return "target", targetRights, nil
}

func (p *preflight) judgeTopic(ctx context.Context, name string, t *kmsg.MetadataResponseTopic) {
	role, need, plan := p.role(name)
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case err == nil:
		p.topics[name] = t
		p.topicBits(name, role, operations(t.AuthorizedOperations), need)
	case errors.Is(err, kerr.UnknownTopicOrPartition) && plan == nil:
		p.add(CheckWarning, "topics", name, "the target does not exist; its messages are tried again for a while, then they become dead letters",
			p.commands.create(&topicPlan{name: name}))
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		p.absent(ctx, plan)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		p.hidden(name, role, need, plan)
	case kerr.IsRetriable(err):
		p.topics[name] = t
		p.add(CheckWarning, "topics", name, fmt.Sprintf("the %s is not well at present: %v", role, err))
		p.topicBits(name, role, operations(t.AuthorizedOperations), need)
	default:
		p.add(CheckError, "topics", name, fmt.Sprintf("the %s cannot be used: %v", role, err))
	}
}

// hidden is told of a topic that may not be described: then no right that Describe comes with is there.
func (p *preflight) hidden(name, role string, need []right, plan *topicPlan) {
	var names, sure []string
	for _, r := range need {
		names = append(names, operationName(r.op))
		if r.op != kmsg.ACLOperationDescribeConfigs {
			sure = append(sure, operationName(r.op))
		}
	}
	text, fix := fmt.Sprintf("missing %s: the %s may not be described, or does not exist", strings.Join(sure, ", "), role), []string{p.commands.allow(name, names...)}
	if plan != nil && p.o.Topics.Create {
		text += "; with Create Bide makes it"
		fix = append(fix, p.commands.allow(name, append(names, "Create")...))
	}
	p.add(CheckError, "rights", name, text, fix...)
}

func (p *preflight) topicBits(name, role string, have operations, need []right) {
	if !have.known() {
		p.add(CheckNote, "rights", name, "this broker does not tell which rights Bide has on the "+role)
		return
	}
	if p.lacks(name, "--topic "+name, lacking(have, need)) {
		var names []string
		for _, r := range need {
			names = append(names, operationName(r.op))
		}
		p.add(CheckOK, "rights", name, fmt.Sprintf("%s: %s allowed", role, strings.Join(names, ", ")))
	}
}

// absent asks whether Bide could make a topic that is missing.
func (p *preflight) absent(ctx context.Context, plan *topicPlan) {
	t := &settledTopic{plan: *plan, facts: TopicFacts{Name: plan.name}, commands: p.commands}
	if !p.o.Topics.Create {
		p.add(CheckError, "topics", plan.name, fmt.Sprintf("the %s does not exist, and topics.create is false", plan.role), p.commands.create(plan))
		return
	}
	if err := tryCreate(ctx, p.cl, []*settledTopic{t}); err != nil {
		p.add(CheckError, "topics", plan.name, fmt.Sprintf("the %s does not exist, and whether it can be created is not known: %v", plan.role, err), p.commands.create(plan))
		return
	}
	if t.err != nil {
		p.addAdvice(CheckError, "topics", plan.name, strings.TrimPrefix(t.err.Error(), ErrTopicUnfit.Error()+": "))
		return
	}
	p.add(CheckOK, "topics", plan.name, fmt.Sprintf("the %s does not exist; run creates it. Whether Bide may use it can be told only then: run check again", plan.role))
}

// prefixRights looks at the topics that there are and that an entry of allow stands for.
func (p *preflight) prefixRights(ctx context.Context, prefixes, checked []string) {
	all, err := p.describeTopics(ctx, nil)
	if err != nil {
		p.add(CheckError, "rights", "targets", fmt.Sprintf("the topics cannot be listed: %v", err))
		return
	}
	for _, prefix := range prefixes {
		writable := 0
		for _, name := range sortedKeys(all) {
			t := all[name]
			if !strings.HasPrefix(name, prefix) || t.IsInternal || strings.HasPrefix(name, "__") || slices.Contains(checked, name) || t.ErrorCode != 0 {
				continue
			}
			if have := operations(t.AuthorizedOperations); have.known() && !have.has(kmsg.ACLOperationWrite) {
				p.lacks(name, "--topic "+name, lacking(have, targetRights))
				continue
			}
			writable++
		}
		p.add(CheckNote, "rights", prefix+"*", fmt.Sprintf("%d topics of allow's prefix are there and may be written; those that Bide may not even describe, or that come later, cannot be seen", writable),
			p.commands.grant("--topic "+prefix+" --resource-pattern-type prefixed", "Write"))
	}
}

// noProducer is no producer id that a cluster gives out: a request with it cannot take effect.
const noProducer = math.MaxInt64 - 1

// transactionRights finds out whether the transactional ids may be used: of this instance, and of others, since
// whoever takes a lane over ends what its last owner left open.
func (p *preflight) transactionRights(ctx context.Context) {
	prefix := groupPrefix(p.o.Group)
	if p.o.Mode == AtLeastOnce {
		p.add(CheckOK, "rights", prefix, "transactional ids are not used (delivery: at-least-once)")
		return
	}
	if p.o.Instance != "" {
		if !p.transactionRight(ctx, txnID(txnPrefix(p.o.Group, p.o.Instance), 0), "to deliver in transactions") {
			return
		}
	}
	if p.transactionRight(ctx, p.checkTxnID(), "on the ids of the whole group, since an instance that takes a lane over ends what the last one left open") {
		p.add(CheckOK, "rights", prefix, "transactional ids: Write, Describe allowed")
	}
}

// checkTxnID is an id below the group's prefix that no instance uses: those end in a number or in c.
func (p *preflight) checkTxnID() string { return groupPrefix(p.o.Group) + "check-w" }

// transactionRight asks for the coordinator of an id, which needs Describe, and ends a transaction of a
// producer that does not exist, which needs Write: what is allowed to is told that the producer is unknown.
func (p *preflight) transactionRight(ctx context.Context, id, why string) bool {
	prefix := groupPrefix(p.o.Group)
	fix := p.commands.grant("--transactional-id "+prefix+" --resource-pattern-type prefixed", "Write", "Describe")
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType, find.CoordinatorKey, find.CoordinatorKeys = 1, id, []string{id}
	err := patiently(ctx, func() error {
		resp, err := find.RequestWith(ctx, p.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil && len(resp.Coordinators) > 0 {
			err = kerr.ErrorForCode(resp.Coordinators[0].ErrorCode)
		}
		return err
	})
	switch {
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		p.add(CheckError, "rights", prefix, fmt.Sprintf("missing Write, Describe on transactional ids (tried %s): %s", id, why), fix)
		return false
	case err != nil:
		p.add(CheckError, "rights", prefix, fmt.Sprintf("no coordinator for transactional id %s: %v", id, err))
		return false
	}
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch = id, noProducer, 0
	err = patiently(ctx, func() error {
		ended, err := end.RequestWith(ctx, p.cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(ended.ErrorCode)
	})
	switch {
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		p.add(CheckError, "rights", prefix, fmt.Sprintf("missing Write on transactional ids (tried %s): %s", id, why), fix)
		return false
	case err == nil, errors.Is(err, kerr.InvalidProducerIDMapping), errors.Is(err, kerr.ProducerFenced),
		errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.ConcurrentTransactions):
		return true
	}
	p.add(CheckNote, "rights", prefix, fmt.Sprintf("whether Write is allowed on transactional ids cannot be told: %v; check --write tries", err))
	return false
}

// clusterRights finds out what serves only to mend what a cluster broke: transaction markers that got lost.
// It has a broker write a marker into a topic that does not exist.
func (p *preflight) clusterRights(ctx context.Context) {
	if p.o.Mode == AtLeastOnce || len(p.brokers) == 0 {
		return
	}
	const nowhere = "bide.check.no-such-topic"
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID = noProducer
	t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	t.Topic, t.Partitions = nowhere, []int32{0}
	m.Topics = append(m.Topics, t)
	req.Markers = append(req.Markers, m)
	err := error(kerr.UnknownServerError)
	r, sendErr := p.cl.Broker(int(p.brokers[0].NodeID)).RetriableRequest(ctx, req)
	if sendErr != nil {
		err = sendErr
	} else if ms := r.(*kmsg.WriteTxnMarkersResponse).Markers; len(ms) > 0 && len(ms[0].Topics) > 0 && len(ms[0].Topics[0].Partitions) > 0 {
		err = kerr.ErrorForCode(ms[0].Topics[0].Partitions[0].ErrorCode)
	}
	const why = "to write again at once the transaction markers that Kafka 4.4 may lose (KAFKA-20734); without it Bide heals them with a transaction of its own"
	switch {
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		p.add(CheckNote, "rights", "cluster", "missing ClusterAction, which Bide can do without: "+why, p.commands.grant("--cluster", "ClusterAction"))
	case err == nil, errors.Is(err, kerr.UnknownTopicOrPartition):
		p.add(CheckOK, "rights", "cluster", "ClusterAction allowed")
	default:
		p.add(CheckNote, "rights", "cluster", fmt.Sprintf("whether ClusterAction is allowed cannot be told (%v): %s", err, why))
	}
}

// write produces a record in a transaction and aborts it: the one way to know that all of that works.
func (p *preflight) write(ctx context.Context) {
	topic := p.o.Topics.DeadLetter
	switch {
	case p.o.Mode == AtLeastOnce:
		p.add(CheckNote, "rights", topic, "--write needs transactions (delivery: exactly-once), so that nobody sees what is written")
		return
	case p.topics[topic] == nil:
		p.add(CheckNote, "rights", topic, "--write has nothing to write to: the dead-letter topic is not there")
		return
	}
	at, err := p.writeAborted(ctx, topic)
	if err != nil {
		p.add(CheckError, "rights", topic, fmt.Sprintf("--write: %v", err))
		return
	}
	if at.ms > 0 {
		p.stamped = append(p.stamped, at)
	}
	p.add(CheckOK, "rights", topic, fmt.Sprintf("--write: a record was written to partition %d in a transaction, which was aborted", at.partition))
}

func (p *preflight) writeAborted(ctx context.Context, topic string) (stamp, error) {
	opts, err := p.o.Connection.Options(zap.NewNop())
	if err != nil {
		return stamp{}, err
	}
	cl, err := kgo.NewClient(append(opts, kgo.DisableClientMetrics(), kgo.TransactionalID(p.checkTxnID()), kgo.TransactionTimeout(maxTransactionTimeout),
		kgo.RetryTimeout(preflightRetryTimeout), kgo.ProducerLinger(0), kgo.RecordDeliveryTimeout(callTimeout))...)
	if err != nil {
		return stamp{}, err
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		return stamp{}, fmt.Errorf("begin a transaction: %w", err)
	}
	at := stamp{topic: topic, before: p.o.Now()}
	rec := &kgo.Record{Topic: topic, Value: []byte("sidecar check --write: part of an aborted transaction")}
	err = cl.ProduceSync(ctx, rec).FirstErr()
	at.partition = rec.Partition
	switch {
	case err != nil:
		err = fmt.Errorf("write to %s: %w", topic, err)
	case p.timestamps(topic) == "LogAppendTime":
		// Before the end of the transaction, whose marker has a time too.
		at.ms = p.list(ctx, topic, listNewest, readUncommitted)[rec.Partition].ms
		at.after = p.o.Now()
	}
	if e := cl.EndTransaction(ctx, kgo.TryAbort); e != nil {
		err = errors.Join(err, fmt.Errorf("abort the transaction: %w", e))
	}
	return at, err
}
