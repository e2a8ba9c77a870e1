// Package config is the configuration of the sidecar: one plain struct, filled in this order, where the
// later wins:
//
//	Default ──► file (YAML) ──► environment (BIDE_…) ──► flags ──► Validate
//
// A setting has one name. The key is the path in the file and, with two dashes before it, the flag; in
// upper case with _ for . and -, and BIDE_ before it, it is the variable: sasl.mechanism,
// --sasl.mechanism, BIDE_SASL_MECHANISM. Secrets have no flag: a command line can be read by all.
package config

import (
	"time"

	"github.com/bide-mq/bide/kafka"
)

// What delivery may be.
const (
	ExactlyOnce = "exactly-once"
	AtLeastOnce = "at-least-once"
)

// Config is all that the sidecar can be told. [Default] returns one that works; [Load] reads one.
type Config struct {
	// Connection has brokers, client-id, dial-timeout, tls.* and sasl.*.
	Connection kafka.Connection `koanf:",squash"`

	// Ingress are the topics that are consumed; at least one.
	Ingress []Ingress `koanf:"ingress"`
	// Group is the consumer group whose commits say what is settled.
	Group string `koanf:"group"`
	// DataDir holds the log and the instance id; it is made where it is missing.
	DataDir string `koanf:"data-dir"`
	// DataCache is how much memory the log's block cache takes.
	DataCache Bytes `koanf:"data-cache"`
	// DataReserve is the free space of the file system below which nothing more is accepted.
	DataReserve Bytes `koanf:"data-reserve"`
	// InstanceID is the static member id. Empty: made once, and kept in the data directory.
	InstanceID string `koanf:"instance-id"`
	// Delivery is [ExactlyOnce] or [AtLeastOnce].
	Delivery string `koanf:"delivery"`
	// DeadLetterTopic takes what cannot be delivered.
	DeadLetterTopic string `koanf:"dead-letter-topic"`
	// Allow lists the targets that producers may name; one that ends in * is a prefix. Empty: every
	// topic that is neither internal nor an ingress.
	Allow []string `koanf:"allow"`
	// Annotate adds delay-origin, delay-due and delay-origin-timestamp to what is delivered.
	Annotate bool `koanf:"annotate"`

	// HTTPAddr is where metrics and health are served.
	HTTPAddr string `koanf:"http-addr"`
	// Pprof serves profiles under /debug/pprof/ too.
	Pprof bool `koanf:"pprof"`
	Log   Log  `koanf:"log"`

	SessionTimeout     time.Duration `koanf:"session-timeout"`
	GroupProtocol      string        `koanf:"group-protocol"`
	Transactions       int           `koanf:"transactions"`
	TransactionTimeout time.Duration `koanf:"transaction-timeout"`
	DeliveryTimeout    time.Duration `koanf:"delivery-timeout"`
	MaxMessageBytes    Bytes         `koanf:"max-message-bytes"`
	Compression        string        `koanf:"compression"`
	Retry              Retry         `koanf:"retry"`
	Limits             Limits        `koanf:"limits"`
	// Topics has create, partitions, replication-factor and those of the dead-letter topic.
	Topics kafka.TopicOptions `koanf:"topics"`

	// Start, OnRecreated and OnForeignCommit say what to do where the group's commits and the ingress
	// do not fit together.
	Start           string `koanf:"start"`
	OnRecreated     string `koanf:"on-recreated"`
	OnForeignCommit string `koanf:"on-foreign-commit"`

	// WatchdogLimit is how long a loop may work at one step before the process ends.
	WatchdogLimit time.Duration `koanf:"watchdog-limit"`

	// sources says where a key was set last, for faults.
	sources map[string]string
}

// Ingress is one topic that is consumed, and what holds for its messages.
type Ingress struct {
	Topic string `koanf:"topic"`
	// Target is where messages go that name no target of their own.
	Target string `koanf:"target"`
	// Delay holds for messages that ask for none of their own.
	Delay time.Duration `koanf:"delay"`
	// MaxDelay is the longest delay that is accepted; 0: no bound but the year 9999.
	MaxDelay time.Duration `koanf:"max-delay"`
	// Trim deletes records below which every message is settled.
	Trim bool `koanf:"trim"`
	// Carry is auto or off: whether waiting messages are copied to the end of their lane where they pin
	// too many dead records, or where retention comes near. Empty is auto.
	Carry string `koanf:"carry"`
	// Partitions is how many the topic gets when it is created; 0: topics.partitions.
	Partitions int32 `koanf:"partitions"`
}

// Log says what is logged, and how.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}

// Retry says how often a message is tried whose target cannot be written, and with which pauses.
type Retry struct {
	Backoff     time.Duration `koanf:"backoff"`
	MaxBackoff  time.Duration `koanf:"max-backoff"`
	MaxAttempts int           `koanf:"max-attempts"`
}

// Limits bound memory, and how often the sidecar does what costs.
type Limits struct {
	FetchBytes       Bytes         `koanf:"fetch-bytes"`
	PollRecords      int           `koanf:"poll-records"`
	PlanMessages     int           `koanf:"plan-messages"`
	PlanBytes        Bytes         `koanf:"plan-bytes"`
	TransactionEvery time.Duration `koanf:"transaction-every"`
	CommitEvery      time.Duration `koanf:"commit-every"`
	CommitOffsets    int           `koanf:"commit-offsets"`
	LagPause         time.Duration `koanf:"lag-pause"`
	UpkeepEvery      time.Duration `koanf:"upkeep-every"`
	DeadOffsets      int           `koanf:"dead-offsets"`
	Drain            time.Duration `koanf:"drain"`
}

// Default returns the configuration that holds where nothing else is said.
func Default() Config {
	return Config{
		Connection: kafka.Connection{
			Brokers:     []string{"localhost:9092"},
			ClientID:    "bide",
			DialTimeout: 10 * time.Second,
		},
		Ingress:            []Ingress{{Topic: "delay-ingress"}},
		Group:              "bide",
		DataDir:            "bide-data",
		DataCache:          8 << 20,
		DataReserve:        256 << 20,
		Delivery:           ExactlyOnce,
		DeadLetterTopic:    "delay-dead-letter",
		Annotate:           true,
		HTTPAddr:           "127.0.0.1:8080",
		Log:                Log{Level: "info", Format: "json"},
		SessionTimeout:     12 * time.Second,
		GroupProtocol:      "classic",
		Transactions:       4,
		TransactionTimeout: 10 * time.Second,
		DeliveryTimeout:    5 * time.Second,
		MaxMessageBytes:    1048588,
		Compression:        "lz4",
		Retry:              Retry{Backoff: time.Second, MaxBackoff: 5 * time.Minute, MaxAttempts: 20},
		Limits: Limits{
			FetchBytes: 32 << 20, PollRecords: 5000, PlanMessages: 5000, PlanBytes: 4 << 20,
			TransactionEvery: 5 * time.Millisecond, CommitEvery: time.Second, CommitOffsets: 50_000,
			LagPause: 10 * time.Second, UpkeepEvery: 10 * time.Second, DeadOffsets: 65_536, Drain: 4 * time.Second,
		},
		Topics: kafka.TopicOptions{
			Create: true, Partitions: -1, DeadLetterPartitions: -1, ReplicationFactor: -1, DeadLetterRetention: 90 * 24 * time.Hour,
		},
		Start:           "auto",
		OnRecreated:     "stop",
		OnForeignCommit: "stop",
		WatchdogLimit:   30 * time.Second,
	}
}

// Carried reports whether waiting messages of the topic are carried forward.
func (in *Ingress) Carried() bool { return in.Carry != "off" }

// Contract returns the message contract that the topics' settings make.
func (c *Config) Contract() (*kafka.Contract, error) {
	ingresses := make([]kafka.Ingress, 0, len(c.Ingress))
	for _, in := range c.Ingress {
		ingresses = append(ingresses, kafka.Ingress{Topic: in.Topic, Target: in.Target, Delay: in.Delay, MaxDelay: in.MaxDelay})
	}
	return kafka.NewContract(kafka.ContractOptions{
		Ingresses: ingresses, DeadLetterTopic: c.DeadLetterTopic, Allow: c.Allow, Annotate: c.Annotate,
	})
}
