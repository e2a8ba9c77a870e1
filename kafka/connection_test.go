package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// connCluster starts a cluster for the test.
func connCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// connOptions returns the connection's client options and what is logged about it, at every level.
func connOptions(t *testing.T, c Connection) ([]kgo.Opt, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(TraceLevel)
	opts, err := c.Options(zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	return opts, logs
}

// connClient returns a client that gives up soon.
func connClient(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(slices.Clone(opts), kgo.RetryTimeout(time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func connPing(t *testing.T, cl *kgo.Client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return cl.Ping(ctx)
}

func writeTestFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestValidateReportsEveryFaultWithItsKey(t *testing.T) {
	full := writeTestFile(t, "full", "x\n")
	empty := writeTestFile(t, "empty", "\n")
	missing := filepath.Join(t.TempDir(), "missing")
	ca := newTestCA(t, "ca")
	caFile := writeTestFile(t, "ca.pem", string(ca.pem))
	brokers := []string{"localhost:9092"}

	for _, test := range []struct {
		name string
		conn Connection
		want []string // the beginnings of the faults, in order
	}{
		{"a host and port are enough", Connection{Brokers: brokers}, nil},
		{"hosts without a port, and addresses", Connection{Brokers: []string{"kafka", "[::1]:9092", "::1", "10.0.0.1:1"}}, nil},
		{"nothing at all", Connection{}, []string{"brokers: "}},
		{
			"addresses that are none",
			Connection{Brokers: []string{"", "a:1,b:2", "SASL_SSL://a:1", "a:b", ":9092", "a:70000", "a:1:2"}},
			[]string{"brokers[0]: ", "brokers[1]: ", "brokers[2]: ", "brokers[3]: ", "brokers[4]: ", "brokers[5]: ", "brokers[6]: "},
		},
		{"a negative time", Connection{Brokers: brokers, DialTimeout: -1}, []string{"dial-timeout: "}},
		{
			"TLS settings without TLS",
			Connection{Brokers: brokers, TLS: TLS{CAFile: caFile, CertFile: full, KeyFile: full, ServerName: "x", InsecureSkipVerify: true}},
			[]string{"tls.ca-file: ", "tls.cert-file: ", "tls.key-file: ", "tls.server-name: ", "tls.insecure-skip-verify: "},
		},
		{"TLS with a CA", Connection{Brokers: brokers, TLS: TLS{Enabled: true, CAFile: caFile}}, nil},
		{
			"files that hold no certificates",
			Connection{Brokers: brokers, TLS: TLS{Enabled: true, CAFile: full, CertFile: missing, KeyFile: full}},
			[]string{"tls.ca-file: ", "tls.cert-file: "},
		},
		{"a certificate without its key", Connection{Brokers: brokers, TLS: TLS{Enabled: true, CAFile: caFile, CertFile: full}}, []string{"tls.key-file: "}},
		{"a key without its certificate", Connection{Brokers: brokers, TLS: TLS{Enabled: true, CAFile: caFile, KeyFile: full}}, []string{"tls.cert-file: "}},
		{"an unknown mechanism", Connection{Brokers: brokers, SASL: SASL{Mechanism: "GSSAPI"}}, []string{`sasl.mechanism: unknown "GSSAPI"; one of PLAIN`}},
		{"PLAIN with a file", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLPlain, Username: "u", PasswordFile: full}}, nil},
		{"PLAIN with nothing", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLPlain}}, []string{"sasl.username: ", "sasl.password-file: "}},
		{
			"two passwords",
			Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLScram512, Username: "u", Password: "p", PasswordFile: full}},
			[]string{"sasl.password-file: set together"},
		},
		{
			"an empty password file",
			Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLScram256, Username: "u", PasswordFile: empty}},
			[]string{"sasl.password-file: "},
		},
		{
			"settings of other mechanisms",
			Connection{Brokers: brokers, SASL: SASL{Username: "u", Password: "p", OAuth: OAuth{TokenFile: full}, AWS: AWS{Region: "r"}}},
			[]string{"sasl.username: ", "sasl.password: ", "sasl.oauth: ", "sasl.aws: "},
		},
		{"a token file", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenFile: full}}}, nil},
		{"no token file", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenFile: missing}}}, []string{"sasl.oauth.token-file: "}},
		{"no token at all", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLOAuthBearer}}, []string{"sasl.oauth: "}},
		{
			"half of client credentials",
			Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenURL: "idp/token", CAFile: full, Extensions: map[string]string{"auth": "x"}}}},
			[]string{"sasl.oauth.token-url: ", "sasl.oauth.client-id: ", "sasl.oauth.client-secret-file: ", "sasl.oauth.ca-file: ", "sasl.oauth.extensions: "},
		},
		{
			"two ways to a token",
			Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenFile: full, ClientID: "c"}}},
			[]string{"sasl.oauth.token-file: "},
		},
		{"AWS in clear", Connection{Brokers: brokers, SASL: SASL{Mechanism: SASLAWSMSKIAM}}, []string{"sasl.mechanism: "}},
		{
			"half of a role",
			Connection{Brokers: brokers, TLS: TLS{Enabled: true}, SASL: SASL{Mechanism: SASLAWSMSKIAM, AWS: AWS{SessionName: "s", ExternalID: "e"}}},
			[]string{"sasl.aws.session-name: ", "sasl.aws.external-id: "},
		},
		{
			"a role that is none",
			Connection{Brokers: brokers, TLS: TLS{Enabled: true}, SASL: SASL{Mechanism: SASLAWSMSKIAM, AWS: AWS{RoleARN: "admin"}}},
			[]string{"sasl.aws.role-arn: "},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			faults := test.conn.Validate()
			for i := range max(len(faults), len(test.want)) {
				switch {
				case i >= len(faults):
					t.Errorf("fault %d missing: %s", i, test.want[i])
				case i >= len(test.want):
					t.Errorf("fault %d unexpected: %v", i, faults[i])
				case !strings.HasPrefix(faults[i].Error(), test.want[i]):
					t.Errorf("fault %d: got %q, want %q…", i, faults[i], test.want[i])
				}
			}
			_, err := test.conn.Options(zap.NewNop())
			if (err != nil) != (len(faults) > 0) {
				t.Errorf("Options: %v, though Validate found %d faults", err, len(faults))
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "correct horse"
	c := Connection{SASL: SASL{Password: secret, OAuth: OAuth{ClientSecret: secret}}}
	encoded, err := json.Marshal(c.SASL)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(TraceLevel)
	zap.New(core).Info("x", zap.Any("sasl", c.SASL), zap.Any("password", c.SASL.Password), zap.Stringer("s", c.SASL.Password))
	for _, text := range []string{
		fmt.Sprint(c), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%s %q %x", c.SASL.Password, c.SASL.Password, c.SASL.Password),
		string(encoded), logText(logs),
	} {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("shows the secret: %s", text)
		}
	}
	if c.SASL.Password.String() == "" || Secret("").String() != "" {
		t.Error("whether there is a secret does not show")
	}
}

// logText returns everything that was logged.
func logText(logs *observer.ObservedLogs) string {
	var b strings.Builder
	for _, e := range logs.All() {
		fields, _ := json.Marshal(e.ContextMap())
		fmt.Fprintf(&b, "%s %s %s %v\n", e.Level, e.Message, fields, e.ContextMap())
	}
	return b.String()
}

func TestRetryBackoffGrowsToItsBound(t *testing.T) {
	var total time.Duration
	for try := range 25 {
		wait := retryBackoff(try)
		if wait < minRetryBackoff*8/10 || wait > maxRetryBackoff*12/10 {
			t.Errorf("try %d waits %v", try, wait)
		}
		if try > 0 && try <= 20 {
			total += wait
		}
	}
	if retryBackoff(1) > minRetryBackoff*12/10 || retryBackoff(20) < maxRetryBackoff*8/10 {
		t.Error("the first wait is not the shortest, or the last not the longest")
	}
	if total < 20*time.Second || total > 40*time.Second {
		t.Errorf("twenty tries wait %v, not about half a minute", total)
	}
}

func TestTheDialerWorksInVirtualTime(t *testing.T) {
	for _, encrypted := range []string{"plain", "tls"} {
		t.Run(encrypted, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var network kfake.VirtualNetwork
				opts := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen)}
				c := Connection{Brokers: []string{"127.0.0.1:9092"}, Dialer: network.DialContext}
				if encrypted == "tls" {
					ca := newTestCA(t, "ca")
					opts = append(opts, kfake.TLS(ca.server(t, nil)))
					c.TLS = TLS{Enabled: true, CAFile: writeTestFile(t, "ca.pem", string(ca.pem))}
				}
				cluster, err := kfake.NewCluster(opts...)
				if err != nil {
					t.Fatal(err)
				}
				defer cluster.Close()
				options, _ := connOptions(t, c)
				cl, err := kgo.NewClient(options...)
				if err != nil {
					t.Fatal(err)
				}
				defer cl.Close()
				if err := connPing(t, cl); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestDialingEndsAfterTheDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Connection{
			Brokers: []string{"localhost"}, DialTimeout: 3 * time.Second,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}
		dial, err := c.dialer(zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = dial(t.Context(), "tcp", "localhost:9092")
		if took := time.Since(start); took != 3*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestTheSoftwareVersionIsOneThatBrokersTake(t *testing.T) {
	version := softwareVersion()
	if version == "" || notInVersion.MatchString(version) || strings.Trim(version, ".-") != version {
		t.Errorf("%q", version)
	}
}
