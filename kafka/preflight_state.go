package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap/zapcore"

	"github.com/bide-mq/bide"
)

// topicSettings has EnsureTopics look at the topics that are there.
func (p *preflight) topicSettings(ctx context.Context) {
	p.stamps = make(map[string]string)
	o := p.o.Topics
	o.Create, o.Ingress, o.Bootstrap = false, p.ingresses(), p.o.Connection.Brokers
	if p.topics[o.DeadLetter] == nil {
		o.DeadLetter = ""
	}
	if len(o.Ingress) == 0 && o.DeadLetter == "" {
		return
	}
	found, err := EnsureTopics(ctx, p.cl, o)
	before := len(p.checks)
	for _, f := range found.Findings {
		if f.Setting == "DescribeConfigs" {
			continue // told among the rights
		}
		level := CheckNote
		if f.Level >= zapcore.WarnLevel {
			level = CheckWarning
		}
		p.addAdvice(level, "topics", f.Topic, f.Setting+"="+f.Value+": "+f.Advice)
	}
	for _, fault := range split(err) {
		name := "topics"
		text := strings.TrimPrefix(fault.Error(), ErrTopicUnfit.Error()+": ")
		for _, facts := range found.all() {
			if strings.HasPrefix(text, facts.Name+" ") {
				name = facts.Name
			}
		}
		p.addAdvice(CheckError, "topics", name, text)
	}
	if len(p.checks) == before {
		p.add(CheckOK, "topics", "settings", "nothing in the settings that may be read would delete what waits, or refuse dead letters")
	}
	p.readStamps(ctx, &o)
}

// readStamps learns whose clock the topics' timestamps are from.
func (p *preflight) readStamps(ctx context.Context, o *TopicOptions) {
	var topics []*settledTopic
	for _, in := range o.Ingress {
		topics = append(topics, &settledTopic{plan: o.ingressPlan(in)})
	}
	if o.DeadLetter != "" {
		topics = append(topics, &settledTopic{plan: o.deadLetterPlan(0)})
	}
	if err := describeSettings(ctx, p.cl, topics); err != nil {
		return // the clock's check says that it cannot tell
	}
	for _, t := range topics {
		p.stamps[t.plan.name] = t.settings[timestampType]
	}
}

// split returns the errors that EnsureTopics joined.
func split(err error) []error {
	if err == nil {
		return nil
	}
	// errors.Join's result alone: an error wrapped with two verbs has a text of its own.
	if joined, ok := err.(interface{ Unwrap() []error }); ok && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		return joined.Unwrap()
	}
	return []error{err}
}

const (
	// A transaction that is open for less is nobody's fault: those of Kafka Streams may take as long.
	openForAWhile = time.Minute
	// The brokers' transaction.max.timeout.ms, unless it was raised: what is older will not end by itself.
	openForEver = 15 * time.Minute
)

// openTransactions looks for what keeps read-committed readers of the ingress from its end.
func (p *preflight) openTransactions(ctx context.Context) {
	pinned := make(map[string][]int32)
	ends := make(map[bide.Lane][2]int64)
	for _, in := range p.ingresses() {
		stable := p.list(ctx, in.Name, listEnd, readCommitted) // before: the end only grows
		end := p.list(ctx, in.Name, listEnd, readUncommitted)
		for _, n := range sortedKeys(end) {
			lane := bide.Lane{Topic: in.Name, Partition: n}
			if err := errors.Join(end[n].err, stable[n].err); err != nil {
				if !errors.Is(err, kerr.TopicAuthorizationFailed) { // told among the rights
					p.add(CheckError, "transactions", lane.String(), fmt.Sprintf("the partition cannot be asked for its end: %v", err))
				}
				continue
			}
			if stable[n].offset < end[n].offset {
				pinned[in.Name] = append(pinned[in.Name], n)
				ends[lane] = [2]int64{stable[n].offset, end[n].offset}
			}
		}
	}
	reported := false
	for _, topic := range sortedKeys(pinned) {
		for _, t := range p.producersOf(ctx, topic, pinned[topic]) {
			reported = p.judgeOpen(t, ends[bide.Lane{Topic: topic, Partition: t.partition}]) || reported
		}
	}
	if !reported && len(p.ingresses()) > 0 {
		p.add(CheckOK, "transactions", "ingress", fmt.Sprintf("no transaction is open there for longer than %v", openForAWhile))
	}
}

// heldOpen is a transaction that a partition has open.
type heldOpen struct {
	topic     string
	partition int32
	producer  int64
	start     int64 // offset
	// id is the transactional id, where Bide may know it; since is when the transaction began, or, with
	// atLeast, when it wrote last.
	id      string
	since   time.Time
	atLeast bool
	err     error // why nothing is known of it
}

// producersOf asks the leaders who has transactions open, and the coordinators what they are called.
func (p *preflight) producersOf(ctx context.Context, topic string, partitions []int32) (open []heldOpen) {
	req := kmsg.NewPtrDescribeProducersRequest()
	t := kmsg.NewDescribeProducersRequestTopic()
	t.Topic, t.Partitions = topic, partitions
	req.Topics = append(req.Topics, t)
	for _, shard := range p.cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			for _, t := range shard.Req.(*kmsg.DescribeProducersRequest).Topics {
				for _, n := range t.Partitions {
					open = append(open, heldOpen{topic: topic, partition: n, err: shard.Err})
				}
			}
			continue
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, r := range t.Partitions {
				if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
					open = append(open, heldOpen{topic: topic, partition: r.Partition, err: err})
					continue
				}
				for _, a := range r.ActiveProducers {
					if a.CurrentTxnStartOffset >= 0 {
						open = append(open, heldOpen{
							topic: topic, partition: r.Partition, producer: a.ProducerID, start: a.CurrentTxnStartOffset,
							since: time.UnixMilli(a.LastTimestamp), atLeast: true,
						})
					}
				}
			}
		}
	}
	p.nameProducers(ctx, open)
	slices.SortFunc(open, func(a, b heldOpen) int { return int(a.partition) - int(b.partition) })
	return open
}

// nameProducers fills in what the coordinators tell of transactions: only of ids that Bide may describe.
func (p *preflight) nameProducers(ctx context.Context, open []heldOpen) {
	if len(open) == 0 {
		return
	}
	ids := make(map[int64]string)
	for _, shard := range p.cl.RequestSharded(ctx, kmsg.NewPtrListTransactionsRequest()) {
		if shard.Err != nil {
			continue
		}
		for _, s := range shard.Resp.(*kmsg.ListTransactionsResponse).TransactionStates {
			ids[s.ProducerID] = s.TransactionalID
		}
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	for i := range open {
		if open[i].id = ids[open[i].producer]; open[i].id != "" && open[i].err == nil && !slices.Contains(req.TransactionalIDs, open[i].id) {
			req.TransactionalIDs = append(req.TransactionalIDs, open[i].id)
		}
	}
	if len(req.TransactionalIDs) == 0 {
		return
	}
	for _, shard := range p.cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			continue
		}
		for _, s := range shard.Resp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			for i := range open {
				if open[i].producer == s.ProducerID && s.ErrorCode == 0 && s.StartTimestamp > 0 {
					open[i].since, open[i].atLeast = time.UnixMilli(s.StartTimestamp), false
				}
			}
		}
	}
}

// judgeOpen reports an open transaction, unless it is young.
func (p *preflight) judgeOpen(t heldOpen, ends [2]int64) bool {
	lane := fmt.Sprintf("%s/%d", t.topic, t.partition)
	tool := "kafka-transactions.sh --bootstrap-server " + p.commands.bootstrap
	look := fmt.Sprintf("%s describe-producers --topic %s --partition %d", tool, t.topic, t.partition)
	hidden := fmt.Sprintf("the %d offsets from %d on cannot be read by read-committed readers, Bide among them", ends[1]-ends[0], ends[0])
	if t.err != nil {
		p.add(CheckWarning, "transactions", lane, fmt.Sprintf("a transaction is open: %s; whose it is cannot be told: %v", hidden, t.err), look)
		return true
	}
	age := p.o.Now().Sub(t.since).Round(time.Second)
	if age < openForAWhile {
		return false
	}
	level, howOld := CheckWarning, "for "+age.String()
	if age >= openForEver {
		level = CheckError
	}
	if t.atLeast {
		howOld = "for " + age.String() + " or longer (it wrote last then)"
	}
	text := fmt.Sprintf("a transaction has been open %s, from offset %d on, of producer id %d, ", howOld, t.start, t.producer)
	switch {
	case t.id == "":
		p.add(level, "transactions", lane, text+"whose transactional id Bide may not describe, or the cluster has forgotten: "+hidden+
			". An administrator can tell whose it is: end or restart that producer. Abort it only if it is not a Bide: that may lose messages",
			look, tool+" list")
	case strings.HasPrefix(t.id, "bide-"):
		p.add(level, "transactions", lane, text+"transactional id "+t.id+": "+hidden+
			". It is a Bide's own: do not abort it, for that may lose messages. Start the instance that it belongs to, which ends it", look)
	default:
		p.add(level, "transactions", lane, text+"transactional id "+t.id+": "+hidden+". End or restart that producer; where it is gone for good, abort what it left",
			fmt.Sprintf("%s abort --topic %s --partition %d --start-offset %d", tool, t.topic, t.partition, t.start))
	}
	return true
}

// commits looks at what the group has committed for the ingress.
func (p *preflight) commits(ctx context.Context) {
	if !p.readable {
		return
	}
	for _, in := range p.ingresses() {
		topic := p.topics[in.Name]
		stored, err := p.storedOf(ctx, topic)
		if err != nil {
			p.add(CheckError, "commits", in.Name, fmt.Sprintf("the group's commits cannot be read: %v", err))
			continue
		}
		start, end := p.list(ctx, in.Name, listStart, readUncommitted), p.list(ctx, in.Name, listEnd, readUncommitted)
		fine, none := 0, 0
		for i := range topic.Partitions {
			n := topic.Partitions[i].Partition
			s, ok := stored[n]
			if !ok || s.offset < 0 {
				none++
				continue
			}
			if p.judgeCommit(bide.Lane{Topic: in.Name, Partition: n}, s, topic.TopicID, start[n], end[n]) {
				fine++
			}
		}
		if fine+none == len(topic.Partitions) {
			p.add(CheckOK, "commits", in.Name, fmt.Sprintf("%d lanes have a commit of Bide's, %d have none yet", fine, none))
		}
	}
}

func (p *preflight) storedOf(ctx context.Context, topic *kmsg.MetadataResponseTopic) (map[int32]storedOffset, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = p.o.Group
	asked := kmsg.NewOffsetFetchRequestGroupTopic()
	asked.Topic, asked.TopicID = *topic.Topic, topic.TopicID
	for i := range topic.Partitions {
		asked.Partitions = append(asked.Partitions, topic.Partitions[i].Partition)
	}
	group.Topics = append(group.Topics, asked)
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, p.cl)
	if err != nil {
		return nil, err
	}
	stored := make(map[int32]storedOffset)
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, r := range t.Partitions {
				if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
					return nil, fmt.Errorf("partition %d: %w", r.Partition, err)
				}
				s := storedOffset{offset: r.Offset}
				if r.Metadata != nil {
					s.meta = *r.Metadata
				}
				stored[r.Partition] = s
			}
		}
	}
	return stored, nil
}

// judgeCommit reports whether a lane can go on from its commit.
func (p *preflight) judgeCommit(lane bide.Lane, s storedOffset, id [16]byte, start, end listed) bool {
	c, _, err := decodeCommit(s.offset, s.meta)
	switch {
	case errors.Is(err, bide.ErrForeignCommit):
		p.add(CheckError, "commits", lane.String(), fmt.Sprintf("%v: the lane would stop. Who set the group's offsets? Restore the commit with its metadata, or start once with the command", err),
			"sidecar run --on-foreign-commit clear")
	case err != nil:
		p.add(CheckError, "commits", lane.String(), fmt.Sprintf("%v: run the release that wrote it", err))
	case c.TopicID != id:
		p.add(CheckError, "commits", lane.String(), "the ingress was deleted and created again since the commit was made: the lane would stop. To drop what waited, start once with the command",
			"sidecar run --on-recreated discard")
	case end.err == nil && c.Next > end.offset:
		p.add(CheckError, "commits", lane.String(), fmt.Sprintf("offset %d is committed and the partition ends at %d: its end was lost, and the lane would stop. To drop what waited, start once with the command", c.Next, end.offset),
			"sidecar run --on-recreated discard")
	case start.err == nil && start.offset > c.Low:
		p.add(CheckWarning, "commits", lane.String(), fmt.Sprintf("the partition begins at offset %d, and messages from %d on may still wait: the data directory has the only copy of those in between", start.offset, c.Low))
	default:
		return true
	}
	return false
}
