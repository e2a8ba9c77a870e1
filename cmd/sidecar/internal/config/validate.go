package config

import (
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// topicName is what Kafka takes as the name of a topic.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// instanceID is what transactional ids and the group take as a part of theirs.
var instanceID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,200}$`)

// leastDeadOffsets is twice the block of offsets by which the log knows what is settled: with less, messages
// would be carried again and again to no avail.
const leastDeadOffsets = 8192

// Validate returns a [FaultError] with every fault, or nil. It reads the files that TLS and SASL name and
// touches no network.
func (c *Config) Validate() error {
	if faults := c.faults(); len(faults) > 0 {
		return &FaultError{Faults: faults}
	}
	return nil
}

// judge gathers faults with their sources.
type judge struct {
	sources map[string]string
	faults  []Fault
}

func (j *judge) add(key, format string, args ...any) {
	setting, _, _ := strings.Cut(key, "[")
	j.faults = append(j.faults, Fault{Key: key, Source: j.sources[setting], Problem: fmt.Sprintf(format, args...)})
}

func (j *judge) topic(key, name string) {
	switch {
	case name == "":
		j.add(key, "is empty; a topic is needed")
	case name == "." || name == ".." || !topicName.MatchString(name):
		j.add(key, "%q is not a topic name: letters, digits, . _ and -, at most 249", name)
	}
}

func (j *judge) between(key string, d, least, most time.Duration) {
	if d < least || d > most {
		j.add(key, "%s is not between %s and %s", FormatDuration(d), FormatDuration(least), FormatDuration(most))
	}
}

func (j *judge) upTo(key string, n, most int) {
	if n < 1 || n > most {
		j.add(key, "%d is not between 1 and %d", n, most)
	}
}

func (j *judge) size(key string, n, least, most Bytes) {
	if n < least || n > most {
		j.add(key, "%s is not between %s and %s", n, least, most)
	}
}

func (c *Config) faults() []Fault {
	j := &judge{sources: c.sources}
	for _, err := range c.Connection.Validate() {
		key, problem, _ := strings.Cut(err.Error(), ": ")
		j.add(key, "%s", problem)
	}
	fields := leaves(reflect.ValueOf(c).Elem(), "")
	for _, s := range settings {
		if s.Choices != nil && !slices.Contains(s.Choices, fields[s.Key].String()) {
			j.add(s.Key, "%q is none of %s", fields[s.Key].String(), strings.Join(s.Choices, ", "))
		}
	}
	if n := c.Limits.DeadOffsets; n < leastDeadOffsets {
		j.add("limits.dead-offsets", "%d is below %d: what is settled is known by blocks of 4096 offsets", n, leastDeadOffsets)
	}
	before := len(j.faults)
	c.judgeTopics(j)
	if _, err := c.Contract(); err != nil && len(j.faults) == before {
		j.faults = append(j.faults, Fault{Source: "topics", Problem: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	c.judgeNames(j)
	c.judgeLimits(j)
	return j.faults
}

func (c *Config) judgeTopics(j *judge) {
	if len(c.Ingress) == 0 {
		j.add("ingress", "is empty; at least one topic is needed")
	}
	seen := make(map[string]bool)
	for _, in := range c.Ingress {
		seen[in.Topic] = true
	}
	dead := c.DeadLetterTopic
	j.topic("dead-letter-topic", dead)
	if seen[dead] && dead != "" {
		j.add("dead-letter-topic", "%q is an ingress too; dead letters would be read again", dead)
	}
	for i, in := range c.Ingress {
		key := func(name string) string { return fmt.Sprintf("ingress[%d].%s", i, name) }
		j.topic(key("topic"), in.Topic)
		if slices.ContainsFunc(c.Ingress[:i], func(o Ingress) bool { return o.Topic == in.Topic }) {
			j.add(key("topic"), "%q is in the list already", in.Topic)
		}
		if !slices.Contains([]string{"", "auto", "off"}, in.Carry) {
			j.add(key("carry"), "%q is neither auto nor off", in.Carry)
		}
		if in.Target != "" {
			j.topic(key("target"), in.Target)
			if seen[in.Target] {
				j.add(key("target"), "%q is an ingress; messages would never leave", in.Target)
			}
		}
		if in.MaxDelay > 0 && in.Delay > in.MaxDelay {
			j.add(key("delay"), "%s is longer than max-delay, %s", FormatDuration(in.Delay), FormatDuration(in.MaxDelay))
		}
		for name, d := range map[string]time.Duration{"delay": in.Delay, "max-delay": in.MaxDelay} {
			if d%time.Millisecond != 0 {
				j.add(key(name), "%s is not a whole number of milliseconds", FormatDuration(d))
			}
		}
		if in.Partitions < 0 {
			j.add(key("partitions"), "%d is negative", in.Partitions)
		}
	}
	for i, target := range c.Allow {
		if name := strings.TrimSuffix(target, "*"); name != "" {
			j.topic(fmt.Sprintf("allow[%d]", i), name)
		}
	}
}

func (c *Config) judgeNames(j *judge) {
	if c.Group == "" {
		j.add("group", "is empty; a consumer group is needed")
	}
	if c.DataDir == "" {
		j.add("data-dir", "is empty; a directory is needed")
	}
	if c.InstanceID != "" && !instanceID.MatchString(c.InstanceID) {
		j.add("instance-id", "%q is not an id: letters, digits, . _ and -, at most 200", c.InstanceID)
	}
	if c.HTTPAddr != "" {
		if _, port, err := net.SplitHostPort(c.HTTPAddr); err != nil || port == "" {
			j.add("http-addr", "%q is not host:port", c.HTTPAddr)
		} else if _, err := net.LookupPort("tcp", port); err != nil {
			j.add("http-addr", "%q has no port from 0 to 65535", c.HTTPAddr)
		}
	}
	if c.Pprof && c.HTTPAddr == "" {
		j.add("pprof", "needs http-addr, which is empty")
	}
}

func (c *Config) judgeLimits(j *judge) {
	j.between("session-timeout", c.SessionTimeout, time.Second, 30*time.Minute)
	j.between("transaction-timeout", c.TransactionTimeout, time.Second, 15*time.Second)
	j.between("delivery-timeout", c.DeliveryTimeout, 100*time.Millisecond, 10*time.Minute)
	j.between("watchdog-limit", c.WatchdogLimit, time.Second, time.Hour)
	j.between("retry.backoff", c.Retry.Backoff, 10*time.Millisecond, 24*time.Hour)
	if c.Retry.MaxBackoff < c.Retry.Backoff {
		j.add("retry.max-backoff", "%s is shorter than retry.backoff, %s", FormatDuration(c.Retry.MaxBackoff), FormatDuration(c.Retry.Backoff))
	}
	j.upTo("retry.max-attempts", c.Retry.MaxAttempts, 1_000_000)
	j.upTo("transactions", c.Transactions, 8)
	if c.DeliveryTimeout >= c.TransactionTimeout {
		j.add("delivery-timeout", "%s is not shorter than transaction-timeout, %s", FormatDuration(c.DeliveryTimeout), FormatDuration(c.TransactionTimeout))
	}
	l := c.Limits
	j.upTo("limits.poll-records", l.PollRecords, 100_000)
	j.upTo("limits.plan-messages", l.PlanMessages, 100_000)
	j.upTo("limits.commit-offsets", l.CommitOffsets, 1_000_000_000)
	j.between("limits.transaction-every", l.TransactionEvery, time.Microsecond, time.Second)
	j.between("limits.commit-every", l.CommitEvery, 10*time.Millisecond, time.Minute)
	j.between("limits.lag-pause", l.LagPause, 100*time.Millisecond, 24*time.Hour)
	j.between("limits.drain", l.Drain, 100*time.Millisecond, time.Minute)
	j.size("limits.fetch-bytes", l.FetchBytes, 1<<20, 1<<30)
	j.size("limits.plan-bytes", l.PlanBytes, 1<<10, 256<<20)
	j.size("data-cache", c.DataCache, 1<<20, 64<<30)
	j.size("data-reserve", c.DataReserve, 16<<20, 1<<40)
	j.size("max-message-bytes", c.MaxMessageBytes, 1<<10, 64<<20)
	for key, n := range map[string]int{
		"topics.partitions": int(c.Topics.Partitions), "topics.dead-letter-partitions": int(c.Topics.DeadLetterPartitions),
		"topics.replication-factor": int(c.Topics.ReplicationFactor),
	} {
		if n < 1 && n != -1 {
			j.add(key, "%d is neither -1 nor at least 1", n)
		}
	}
	j.between("topics.dead-letter-retention", c.Topics.DeadLetterRetention, time.Minute, 100*365*24*time.Hour)
}
