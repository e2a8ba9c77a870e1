package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
)

// Connection says how to reach a cluster: brokers, TLS and authentication. It is plain data that a
// configuration loads into; [Connection.Validate] judges it and [Connection.Options] applies it.
type Connection struct {
	// Brokers are the first brokers to ask, as host:port; the port is 9092 where it is missing. One
	// that answers is enough: it names the others.
	Brokers []string `koanf:"brokers"`
	// ClientID is the name by which the brokers know the client in their logs and quotas; "bide" if
	// empty.
	ClientID string `koanf:"client-id"`
	// DialTimeout bounds how long a connection may take, TLS handshake included; 0 means 10 seconds.
	DialTimeout time.Duration `koanf:"dial-timeout"`
	TLS         TLS           `koanf:"tls"`
	SASL        SASL          `koanf:"sasl"`

	// Dialer opens connections instead of a [net.Dialer], below TLS. For tests and proxies.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error) `koanf:"-"`
	// Metrics counts what goes wrong with certificates and credentials; nil counts nothing.
	Metrics *ConnectionMetrics `koanf:"-"`
}

const (
	defaultDialTimeout = 10 * time.Second

	// A client that learns that a leader moved asks for metadata at once, but not before the last
	// answer is this old: it is how long a moved leader delays a message. franz-go's default is 5 s.
	metadataMinAge = 250 * time.Millisecond
	// New partitions of an ingress are seen after this long at most. franz-go's default is 5 min.
	metadataMaxAge = 30 * time.Second

	// Connections that carry nothing are closed after this long: long enough that a lone message does
	// not wait for handshakes, shorter than the four to six minutes after which load balancers
	// drop a connection without a word.
	connIdleTimeout = 3 * time.Minute

	// Waits between attempts of one request: the first is short, since most faults are a moved leader
	// or a broker that restarts, and twenty of them (the client's limit) make half a minute.
	minRetryBackoff = 50 * time.Millisecond
	maxRetryBackoff = 2 * time.Second
)

// Validate returns every fault of the connection, each beginning with the path of its key; none means
// that [Connection.Options] will not find any. It reads the files that the connection names, and
// touches no network.
func (c *Connection) Validate() []error {
	var faults faultList
	if len(c.Brokers) == 0 {
		faults.add("brokers", "empty; at least one host:port is needed")
	}
	for i, b := range c.Brokers {
		if err := checkBroker(b); err != nil {
			faults.add(fmt.Sprintf("brokers[%d]", i), "%q: %v", b, err)
		}
	}
	if c.DialTimeout < 0 {
		faults.add("dial-timeout", "%v is negative", c.DialTimeout)
	}
	c.TLS.validate(&faults)
	c.SASL.validate(&faults, &c.TLS)
	return faults
}

// Options returns the client options of the connection: brokers, name, TLS, authentication, logging,
// and how to try again. Several clients may be made of them; they share what was read and cached:
// certificates are read again when their files change, passwords and tokens at every
// authentication. Credentials are never logged. An error joins the faults of [Connection.Validate].
func (c *Connection) Options(log *zap.Logger) ([]kgo.Opt, error) {
	if faults := c.Validate(); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	dial, err := c.dialer(log)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(cmp.Or(c.ClientID, "bide")),
		kgo.SoftwareNameAndVersion("bide", softwareVersion()),
		kgo.WithLogger(newClientLogger(log)),
		kgo.Dialer(dial),
		kgo.ConnIdleTimeout(connIdleTimeout),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.RetryBackoffFn(retryBackoff),
		// A broker that restarts accepts and closes connections for a while. Without this the client
		// takes the first such close for a wrong configuration and gives up; with it, it says so
		// when it has tried for half a minute.
		kgo.AlwaysRetryEOF(),
	}
	mechanism, err := c.SASL.mechanism(log, c.Metrics)
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	c.warnOfRisks(log)
	return opts, nil
}

// warnOfRisks says what works, but not as safely as it looks.
func (c *Connection) warnOfRisks(log *zap.Logger) {
	if c.TLS.Enabled && c.TLS.InsecureSkipVerify {
		log.Warn("tls.insecure-skip-verify: brokers are not verified; anybody can pose as one")
	}
	if c.SASL.Mechanism.secretInClear() && !c.TLS.Enabled {
		log.Warn("sasl without tls: credentials cross the network in clear",
			zap.String("mechanism", string(c.SASL.Mechanism)))
	}
	if strings.HasPrefix(c.SASL.OAuth.TokenURL, "http:") {
		log.Warn("sasl.oauth.token-url: http, not https: the client secret crosses the network in clear")
	}
}

// dialer returns how a client opens a connection, TLS included.
func (c *Connection) dialer(log *zap.Logger) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	timeout := cmp.Or(c.DialTimeout, defaultDialTimeout)
	plain := c.Dialer
	if plain == nil {
		plain = (&net.Dialer{}).DialContext
	}
	if !c.TLS.Enabled {
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return plain(ctx, network, addr)
		}, nil
	}
	files, err := openTLSFiles(&c.TLS, log, c.Metrics)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		conn, err := plain(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return files.handshake(ctx, conn, network, addr)
	}, nil
}

// retryBackoff doubles from the least to the greatest wait, a fifth more or less, so that clients
// which lost the same broker do not come back all at once.
func retryBackoff(tries int) time.Duration {
	wait := maxRetryBackoff
	if tries < 6 {
		wait = minRetryBackoff << max(tries-1, 0)
	}
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// checkBroker returns what is wrong with the address of a broker.
func checkBroker(addr string) error {
	switch {
	case addr == "":
		return errors.New("empty; write host:port")
	case strings.Contains(addr, "://"):
		return errors.New("has a scheme; write host:port, and use tls.enabled and sasl.mechanism")
	case strings.ContainsAny(addr, ", \t\r\n"):
		return errors.New("has a comma or a space; write one broker an entry")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		if strings.Contains(addr, ":") && net.ParseIP(strings.Trim(addr, "[]")) == nil {
			return errors.New("not host:port")
		}
		return nil // a host alone: the client adds the port
	}
	if host == "" {
		return errors.New("has no host")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// modulePath is how build information names Bide, also in a program that embeds it.
const modulePath = "github.com/bide-mq/bide"

// notInVersion is what the brokers do not take in the version of a client (KIP-511).
var notInVersion = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// softwareVersion returns the version that the build has, "devel" where it has none.
func softwareVersion() string {
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Path == modulePath {
			version = info.Main.Version
		}
		for _, dep := range info.Deps {
			if dep.Path == modulePath {
				version = dep.Version
			}
		}
	}
	version = strings.Trim(notInVersion.ReplaceAllString(version, "-"), "-.")
	return cmp.Or(version, "devel")
}

// faultList gathers the faults of a configuration, each with its key's path.
type faultList []error

func (f *faultList) add(path, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%s: %w", path, fmt.Errorf(format, args...)))
}
