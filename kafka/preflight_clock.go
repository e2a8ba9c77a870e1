package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// A difference of clocks that is worth a word, and one that no one can want.
	skewWarning = 250 * time.Millisecond
	skewError   = 10 * time.Second
	// listNewest asks for the record with the greatest timestamp.
	listNewest = -3
)

// stamp is the time that a broker gave a record between two moments of this machine's clock.
type stamp struct {
	topic         string
	partition     int32
	ms            int64
	before, after time.Time
}

// skew is by how much the cluster's clock is ahead of this machine's, and how far off that may be.
type skew struct {
	by, give time.Duration
	source   string
}

// between reads a skew off a moment of the cluster's clock, in milliseconds, that lies between two of ours.
func between(before, after time.Time, ms int64, source string) skew {
	middle := before.Add(after.Sub(before) / 2)
	return skew{time.UnixMilli(ms).Sub(middle), after.Sub(before)/2 + time.Millisecond, source}
}

// clock compares this machine's clock with the cluster's: with the time that the controller gives for itself,
// with a record that was just written, or, as a bound, with the newest record of an ingress.
func (p *preflight) clock(ctx context.Context) {
	var found []skew
	if s, ok := p.controllerClock(ctx); ok {
		found = append(found, s)
	}
	for _, at := range p.stamped {
		found = append(found, between(at.before, at.after, at.ms, fmt.Sprintf("the leader of %s/%d", at.topic, at.partition)))
	}
	for _, s := range found {
		p.judgeSkew(s)
	}
	behind := p.boundClock(ctx)
	if len(found) == 0 && !behind {
		p.add(CheckNote, "clock", "skew", "whether this machine's clock agrees with the brokers' cannot be told without the right Describe on the cluster, or check --write; "+
			"their difference moves deliveries by as much", p.commands.grant("--cluster", "Describe"))
	}
}

func (p *preflight) judgeSkew(s skew) {
	off := max(s.by.Abs()-s.give, 0)
	word := "ahead of"
	if s.by > 0 {
		word = "behind"
	}
	text := fmt.Sprintf("this machine's clock is %v (± %v) %s that of %s", s.by.Abs().Round(time.Millisecond), s.give.Round(time.Millisecond), word, s.source)
	harm := "; deliveries are off by as much: have both synchronised (NTP)"
	switch {
	case off >= skewError:
		p.add(CheckError, "clock", "skew", text+harm)
	case off >= skewWarning:
		p.add(CheckWarning, "clock", "skew", text+harm)
	default:
		p.add(CheckOK, "clock", "skew", text)
	}
}

// controllerClock asks for the state of the controllers' quorum, of which the leader says that it has caught
// up with itself just now. It needs Describe on the cluster.
func (p *preflight) controllerClock(ctx context.Context) (skew, bool) {
	if !p.knows(kmsg.DescribeQuorum) {
		return skew{}, false
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic, t.Partitions = "__cluster_metadata", []kmsg.DescribeQuorumRequestTopicPartition{kmsg.NewDescribeQuorumRequestTopicPartition()}
	req.Topics = append(req.Topics, t)
	var best skew
	for range 3 { // the first has to open a connection
		before := p.o.Now()
		resp, err := req.RequestWith(ctx, p.cl)
		after := p.o.Now()
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return skew{}, false
		}
		part := resp.Topics[0].Partitions[0]
		ms := int64(-1)
		for _, v := range part.CurrentVoters {
			if v.ReplicaID == part.LeaderID {
				ms = v.LastCaughtUpTimestamp
			}
		}
		if ms <= 0 {
			return skew{}, false
		}
		if s := between(before, after, ms, fmt.Sprintf("controller %d", part.LeaderID)); best.source == "" || s.give < best.give {
			best = s
		}
	}
	return best, true
}

// boundClock looks for records that the brokers wrote in this machine's future.
func (p *preflight) boundClock(ctx context.Context) bool {
	var furthest time.Duration
	var where string
	for _, in := range p.ingresses() {
		if p.timestamps(in.Name) != "LogAppendTime" {
			continue
		}
		answers := p.list(ctx, in.Name, listNewest, readUncommitted)
		now := p.o.Now()
		for n, l := range answers {
			if l.err != nil || l.ms <= 0 {
				continue
			}
			if ahead := time.UnixMilli(l.ms).Sub(now); ahead > furthest {
				furthest, where = ahead, fmt.Sprintf("%s/%d", in.Name, n)
			}
		}
	}
	if furthest < time.Millisecond {
		return false
	}
	level := CheckWarning
	if furthest >= skewError {
		level = CheckError
	}
	p.add(level, "clock", "skew", fmt.Sprintf("this machine's clock is behind by %v at least: the broker of %s wrote a record that much later than now; deliveries are late by as much: have both synchronised (NTP)",
		furthest.Round(time.Millisecond), where))
	return true
}

// timestamps returns a topic's message.timestamp.type; empty where it may not be read.
func (p *preflight) timestamps(topic string) string { return p.stamps[topic] }
