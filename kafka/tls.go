package kafka

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// TLS says how connections to brokers are encrypted and verified. Files hold PEM; they are looked at
// whenever a connection is opened, so certificates may be rotated at any time, by a rename or by
// the symlink of a Kubernetes secret.
type TLS struct {
	Enabled bool `koanf:"enabled"`
	// CAFile has the certificates that vouch for the brokers; empty: those of the system.
	CAFile string `koanf:"ca-file"`
	// CertFile (with its intermediates) and KeyFile identify this client where brokers ask for it
	// (mutual TLS). The key is not encrypted.
	CertFile string `koanf:"cert-file"`
	KeyFile  string `koanf:"key-file"`
	// ServerName is the name that the brokers' certificates are checked for; empty: the host dialled.
	ServerName string `koanf:"server-name"`
	// InsecureSkipVerify accepts any certificate. Never for production.
	InsecureSkipVerify bool `koanf:"insecure-skip-verify"`
}

func (t *TLS) validate(faults *faultList) {
	if !t.Enabled {
		for _, f := range []struct{ path, value string }{
			{"tls.ca-file", t.CAFile},
			{"tls.cert-file", t.CertFile},
			{"tls.key-file", t.KeyFile},
			{"tls.server-name", t.ServerName},
		} {
			if f.value != "" {
				faults.add(f.path, "set, but tls.enabled is false")
			}
		}
		if t.InsecureSkipVerify {
			faults.add("tls.insecure-skip-verify", "set, but tls.enabled is false")
		}
		return
	}
	if t.CAFile != "" {
		if _, _, err := readParsed(parseRoots, t.CAFile); err != nil {
			faults.add("tls.ca-file", "%w", err)
		}
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		faults.add("tls.key-file", "missing; tls.cert-file needs its private key")
	case t.CertFile == "" && t.KeyFile != "":
		faults.add("tls.cert-file", "missing; tls.key-file needs its certificate")
	case t.CertFile != "":
		if _, _, err := readParsed(parsePair, t.CertFile, t.KeyFile); err != nil {
			faults.add("tls.cert-file", "%w", err)
		}
	}
}

// tlsFiles opens TLS sessions with what the files hold at that moment.
type tlsFiles struct {
	conf  *TLS
	roots *keptFiles[*x509.CertPool]   // nil: the system's
	pair  *keptFiles[*tls.Certificate] // nil: no client certificate
}

func openTLSFiles(conf *TLS, log *zap.Logger, metrics *ConnectionMetrics) (*tlsFiles, error) {
	f := &tlsFiles{conf: conf}
	if conf.CAFile != "" {
		f.roots = &keptFiles[*x509.CertPool]{what: certificateCA, parse: parseRoots, paths: []string{conf.CAFile}, log: log, metrics: metrics}
		if err := f.roots.open(); err != nil {
			return nil, fmt.Errorf("tls.ca-file: %w", err)
		}
	} else if pool, err := x509.SystemCertPool(); !conf.InsecureSkipVerify && (err != nil || pool.Equal(x509.NewCertPool())) {
		log.Warn("tls.ca-file: not set, and this system has no CA certificates: no broker can be verified", zap.Error(err))
	}
	if conf.CertFile != "" {
		f.pair = &keptFiles[*tls.Certificate]{
			what: certificateClient, parse: parsePair, paths: []string{conf.CertFile, conf.KeyFile}, log: log, metrics: metrics,
			usable:  notExpired,
			adopted: func(c *tls.Certificate) { metrics.certificateExpires(c.Leaf.NotAfter) },
		}
		if err := f.pair.open(); err != nil {
			return nil, fmt.Errorf("tls.cert-file: %w", err)
		}
	}
	return f, nil
}

// handshake makes a TLS session of conn, or closes it.
func (f *tlsFiles) handshake(ctx context.Context, conn net.Conn, network, addr string) (net.Conn, error) {
	conf := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         f.conf.ServerName,
		InsecureSkipVerify: f.conf.InsecureSkipVerify, //nolint:gosec // the operator asked for it, and is warned at start
	}
	if conf.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("split broker address: %w", err)
		}
		conf.ServerName = host
	}
	if f.roots != nil {
		conf.RootCAs = f.roots.current()
	}
	if f.pair != nil {
		pair := f.pair.current()
		// Given whatever authorities the broker lists: where it does not fit, the broker's refusal says
		// so, while Go would send no certificate at all.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	}
	session := tls.Client(conn, conf)
	if err := session.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		// An error of dialling: the client then asks for metadata and tries again, where it would fail
		// what it was to send. A broker whose new certificate is ahead of our CA file is such a case.
		return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: fmt.Errorf("tls handshake: %w", err)}
	}
	return session, nil
}

// keptFiles is what some files hold, read again when they have changed; a broken change is reported
// and what was read before stays. There is no polling: files are compared by content whenever they
// are needed, which is once a connection. Safe for concurrent use.
type keptFiles[T any] struct {
	what    string // in logs and metrics: ca, client
	paths   []string
	parse   func(contents [][]byte) (T, error)
	usable  func(T) error // may refuse a change that parses; may be nil
	adopted func(T)       // may be nil
	log     *zap.Logger
	metrics *ConnectionMetrics

	mu struct {
		sync.Mutex
		value T
		sum   [sha256.Size]byte
		fault string // the last one reported, so that a storm of connections reports it once
	}
}

// open reads the files for the first time.
func (k *keptFiles[T]) open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, sum, err := readParsed(k.parse, k.paths...)
	if err != nil {
		return err
	}
	k.adoptLocked(value, sum)
	return nil
}

// current returns what the files hold now, or what they last held in good order.
func (k *keptFiles[T]) current() T {
	k.mu.Lock()
	defer k.mu.Unlock()
	contents, sum, err := readFiles(k.paths)
	if err == nil && sum == k.mu.sum {
		k.mu.fault = ""
		return k.mu.value
	}
	var value T
	if err == nil {
		value, err = k.parse(contents)
	}
	if err == nil && k.usable != nil {
		err = k.usable(value)
	}
	if err == nil {
		k.adoptLocked(value, sum)
		k.log.Info("certificate files reloaded", zap.String("certificate", k.what), zap.Strings("files", k.paths))
		return value
	}
	if fault := fmt.Sprintf("%x %v", sum, err); fault != k.mu.fault {
		k.mu.fault = fault
		k.metrics.reloadFailed(k.what)
		k.log.Warn("certificate files changed and cannot be used; the old ones stay in use",
			zap.String("certificate", k.what), zap.Strings("files", k.paths), zap.Error(err))
	}
	return k.mu.value
}

func (k *keptFiles[T]) adoptLocked(value T, sum [sha256.Size]byte) {
	k.mu.value, k.mu.sum, k.mu.fault = value, sum, ""
	if k.adopted != nil {
		k.adopted(value)
	}
}

// readParsed reads and parses files that belong together.
func readParsed[T any](parse func([][]byte) (T, error), paths ...string) (value T, sum [sha256.Size]byte, err error) {
	contents, sum, err := readFiles(paths)
	if err != nil {
		return value, sum, err
	}
	value, err = parse(contents)
	return value, sum, err
}

// readFiles returns the files' contents and a sum over all of them.
func readFiles(paths []string) (contents [][]byte, sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, sum, err
		}
		contents = append(contents, content)
		// The length keeps bytes that move from one file to the next from going unseen.
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(content))))
		_, _ = hash.Write(content)
	}
	hash.Sum(sum[:0])
	return contents, sum, nil
}

func parseRoots(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("holds no PEM certificate")
	}
	return pool, nil
}

func parsePair(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

func notExpired(pair *tls.Certificate) error {
	if time.Now().After(pair.Leaf.NotAfter) {
		return fmt.Errorf("certificate expired at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
