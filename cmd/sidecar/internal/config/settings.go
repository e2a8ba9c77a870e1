package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Setting describes one setting. All that is told about settings, in help and documentation, comes
// from [Settings].
type Setting struct {
	// Key is the setting's path in the file.
	Key string
	// Doc is what it does: a phrase for a table, without a full stop at its end.
	Doc string
	// Choices are the words that it may be; none: anything of its type.
	Choices []string
	// Secret says that it has no flag.
	Secret bool
	// Section says that its value in the file is a section with names of the user's own.
	Section bool
}

// Env returns the environment variable of the setting.
func (s Setting) Env() string { return envOf(s.Key) }

// Flag returns the flag of the setting, with its dashes; empty for a secret.
func (s Setting) Flag() string {
	if s.Secret {
		return ""
	}
	return "--" + s.Key
}

// Default returns the text of the setting's default; empty where there is none.
func (s Setting) Default() string {
	c := Default()
	return Text(&c, s.Key)
}

// Text returns the text form of a setting as c has it: what a variable would say. Of the ingress list
// it gives the names, of a secret nothing but that there is one, of a section nothing.
func Text(c *Config, key string) string {
	if key == "ingress" {
		var names []string
		for _, in := range c.Ingress {
			names = append(names, in.Topic)
		}
		return strings.Join(names, ",")
	}
	return textOf(leaves(reflect.ValueOf(c).Elem(), "")[key])
}

func envOf(key string) string {
	return "BIDE_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// textOf returns the text form of a field, as set reads it.
func textOf(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return FormatDuration(x)
	case []string:
		return strings.Join(x, ",")
	case map[string]string:
		return ""
	default:
		return fmt.Sprint(x)
	}
}

// Settings returns all settings in the order in which they are documented.
func Settings() []Setting { return slices.Clone(settings) }

// IngressSettings returns the settings of one item of the ingress list, which the file has; the
// environment and the flag take the same list as YAML text.
func IngressSettings() []Setting { return slices.Clone(ingressSettings) }

var settings = []Setting{
	{Key: "brokers", Doc: "first brokers to ask, as host:port"},
	{Key: "ingress", Doc: "topics that are consumed: names, or a YAML list with settings of each, as [{topic: retry.5m, target: orders, delay: 5m}]"},
	{Key: "group", Doc: "consumer group; its commits say what is settled; a new name, with a new data-dir, starts from nothing"},
	{Key: "delivery", Doc: "what a read-committed consumer sees of each message", Choices: []string{ExactlyOnce, AtLeastOnce}},
	{Key: "data-dir", Doc: "directory of the log and the instance id; one process each"},
	{Key: "data-cache", Doc: "memory for the log's block cache"},
	{Key: "data-reserve", Doc: "free disk space below which nothing more is accepted; delivery goes on"},
	{Key: "instance-id", Doc: "static member id, unique in the group; empty: made once and kept in data-dir"},
	{Key: "dead-letter-topic", Doc: "topic for messages that cannot be delivered"},
	{Key: "allow", Doc: "targets that producers may name, prefixes with a * at the end; empty: all but internal topics and ingresses"},
	{Key: "annotate", Doc: "add delay-origin, delay-due and delay-origin-timestamp to delivered messages"},
	{Key: "http-addr", Doc: "address of /metrics, /livez and /readyz; empty: none"},
	{Key: "pprof", Doc: "serve profiles under /debug/pprof/"},
	{Key: "log.level", Doc: "least level that is logged; trace has every request to a broker", Choices: []string{"trace", "debug", "info", "warn", "error"}},
	{Key: "log.format", Doc: "json for machines, console for eyes", Choices: []string{"json", "console"}},
	{Key: "client-id", Doc: "name by which brokers know the client in logs and quotas"},
	{Key: "dial-timeout", Doc: "how long opening a connection may take"},
	{Key: "tls.enabled", Doc: "encrypt connections to brokers"},
	{Key: "tls.ca-file", Doc: "PEM certificates that vouch for the brokers; empty: those of the system"},
	{Key: "tls.cert-file", Doc: "PEM certificate of this client, for mutual TLS; read again when it changes"},
	{Key: "tls.key-file", Doc: "PEM key of tls.cert-file"},
	{Key: "tls.server-name", Doc: "name that the brokers' certificates are checked for; empty: the host"},
	{Key: "tls.insecure-skip-verify", Doc: "accept any certificate; never for production"},
	{Key: "sasl.mechanism", Doc: "how to authenticate: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM; empty: not at all"},
	{Key: "sasl.username", Doc: "user name for PLAIN and SCRAM"},
	{Key: "sasl.password", Doc: "its password", Secret: true},
	{Key: "sasl.password-file", Doc: "file with the password; read at every authentication"},
	{Key: "sasl.oauth.token-file", Doc: "file with a token, as Kubernetes projects one; read at every authentication"},
	{Key: "sasl.oauth.token-url", Doc: "where to get a token with client credentials"},
	{Key: "sasl.oauth.client-id", Doc: "client id for token-url"},
	{Key: "sasl.oauth.client-secret", Doc: "client secret for token-url", Secret: true},
	{Key: "sasl.oauth.client-secret-file", Doc: "file with the client secret; read whenever a token is asked for"},
	{Key: "sasl.oauth.scopes", Doc: "scopes to ask for"},
	{Key: "sasl.oauth.params", Doc: "further parameters for token-url: a section, or name=value with commas", Section: true},
	{Key: "sasl.oauth.ca-file", Doc: "PEM certificates that vouch for token-url; empty: those of the system"},
	{Key: "sasl.oauth.extensions", Doc: "SASL extensions sent with the token: a section, or name=value with commas", Section: true},
	{Key: "sasl.aws.region", Doc: "region of the MSK cluster; empty: from the environment or the brokers' names"},
	{Key: "sasl.aws.profile", Doc: "profile of the shared AWS configuration"},
	{Key: "sasl.aws.role-arn", Doc: "role to assume"},
	{Key: "sasl.aws.session-name", Doc: "name of the assumed role's session"},
	{Key: "sasl.aws.external-id", Doc: "external id for assuming the role"},
	{Key: "session-timeout", Doc: "how long a dead instance keeps its lanes"},
	{Key: "group-protocol", Doc: "how the group is joined; consumer is KIP-848", Choices: []string{"classic", "consumer"}},
	{Key: "transactions", Doc: "transactional ids that an instance uses in turn"},
	{Key: "transaction-timeout", Doc: "after which brokers end an abandoned transaction; at most 15s"},
	{Key: "delivery-timeout", Doc: "how long a target may be unavailable before its messages are requeued"},
	{Key: "max-message-bytes", Doc: "greatest record that is produced; as message.max.bytes of the brokers"},
	{Key: "compression", Doc: "codec of what is produced", Choices: []string{"none", "gzip", "snappy", "lz4", "zstd"}},
	{Key: "retry.backoff", Doc: "pause before a message is tried again; doubles with each attempt"},
	{Key: "retry.max-backoff", Doc: "longest such pause"},
	{Key: "retry.max-attempts", Doc: "attempts before a message becomes a dead letter"},
	{Key: "limits.fetch-bytes", Doc: "memory for what is fetched and not stored yet"},
	{Key: "limits.poll-records", Doc: "records stored with one fsync at most"},
	{Key: "limits.plan-messages", Doc: "messages in one transaction at most"},
	{Key: "limits.plan-bytes", Doc: "their size at most; a larger one goes alone"},
	{Key: "limits.transaction-every", Doc: "least time between the starts of two transactions"},
	{Key: "limits.commit-every", Doc: "longest time that accepted offsets stay uncommitted while nothing is delivered"},
	{Key: "limits.commit-offsets", Doc: "the same as a number of offsets"},
	{Key: "limits.lag-pause", Doc: "a lane that is late by more than this is not read until it has caught up"},
	{Key: "limits.upkeep-every", Doc: "how often lanes are looked at for what may be trimmed or carried"},
	{Key: "limits.dead-offsets", Doc: "settled records that an ingress partition may hold beyond as many as wait, before messages are carried forward"},
	{Key: "limits.drain", Doc: "how long a stop waits for transactions in flight"},
	{Key: "topics.create", Doc: "create the ingress and dead-letter topics where they are missing"},
	{Key: "topics.partitions", Doc: "partitions of a created ingress; -1: the brokers' default"},
	{Key: "topics.dead-letter-partitions", Doc: "partitions of a created dead-letter topic; -1: the brokers' default"},
	{Key: "topics.replication-factor", Doc: "replicas of a created topic; -1: the brokers' default"},
	{Key: "topics.dead-letter-retention", Doc: "how long a created dead-letter topic keeps its records"},
	{Key: "start", Doc: "what a lane does that has old records but no commit: auto stops, earliest begins at the first record", Choices: []string{"auto", "earliest"}},
	{Key: "on-recreated", Doc: "what a lane does whose ingress was deleted and created again; discard drops what waits", Choices: []string{"stop", "discard"}},
	{Key: "on-foreign-commit", Doc: "what a lane does for which somebody else committed; clear forgets what waits and starts at that offset", Choices: []string{"stop", "clear"}},
	{Key: "watchdog-limit", Doc: "how long a loop may work at one step before the process ends"},
}

var ingressSettings = []Setting{
	{Key: "topic", Doc: "name of the topic; required"},
	{Key: "target", Doc: "target of messages that name none; empty: they must name one"},
	{Key: "delay", Doc: "delay of messages that ask for none"},
	{Key: "max-delay", Doc: "longest delay that is accepted; 0s: up to the year 9999"},
	{Key: "trim", Doc: "true: delete records of the topic below which every message is settled; needs the right Delete"},
	{Key: "carry", Doc: "auto: copy waiting messages to the end of their partition where they pin too many settled records, or where retention comes near; off: never"},
	{Key: "partitions", Doc: "when the topic is created; 0: topics.partitions"},
}
