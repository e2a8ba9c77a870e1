package kafka

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kfake"
)

// testCA issues certificates.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newTestCA(t *testing.T, name string) *testCA {
	t.Helper()
	ca := &testCA{}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotAfter: time.Now().Add(24 * time.Hour),
	}
	ca.pem, _, ca.cert, ca.key = issueTest(t, template, nil, nil)
	return ca
}

// issue returns a certificate for localhost and its key, both as PEM.
func (ca *testCA) issue(t *testing.T, name string, notAfter time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	certPEM, keyPEM, _, _ = issueTest(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost", name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotAfter: notAfter,
	}, ca.cert, ca.key)
	return certPEM, keyPEM
}

// server returns the TLS configuration of a broker, which asks for client certificates of clients if
// that is not nil.
func (ca *testCA) server(t *testing.T, clients *testCA) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(ca.issue(t, "broker", time.Now().Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != nil {
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		conf.ClientCAs.AddCert(clients.cert)
	}
	return conf
}

func issueTest(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (certPEM, keyPEM []byte, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = template.NotAfter.Add(-48 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), cert, key
}

// secretMount is a directory as Kubernetes mounts a secret: files are links into a directory that is
// swapped as a whole.
type secretMount struct {
	dir   string
	count int
}

func (m *secretMount) path(name string) string { return filepath.Join(m.dir, name) }

func (m *secretMount) swap(t *testing.T, files map[string][]byte) {
	t.Helper()
	m.count++
	version := filepath.Join(m.dir, "..v"+string(rune('0'+m.count)))
	steps := []error{os.Mkdir(version, 0o700)}
	for name, content := range files {
		steps = append(steps, os.WriteFile(filepath.Join(version, name), content, 0o600))
		if m.count == 1 {
			steps = append(steps, os.Symlink(filepath.Join("..data", name), m.path(name)))
		}
	}
	steps = append(steps, os.Symlink(version, m.path("..next")), os.Rename(m.path("..next"), m.path("..data")))
	for _, err := range steps {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (m *secretMount) issued(t *testing.T, ca *testCA, notAfter time.Time) map[string][]byte {
	t.Helper()
	cert, key := ca.issue(t, "bide", notAfter)
	return map[string][]byte{"ca.crt": ca.pem, "tls.crt": cert, "tls.key": key}
}

func (m *secretMount) tls() TLS {
	return TLS{Enabled: true, CAFile: m.path("ca.crt"), CertFile: m.path("tls.crt"), KeyFile: m.path("tls.key")}
}

func TestBrokersAreVerifiedAndAskForTheClientCertificate(t *testing.T) {
	ca, other := newTestCA(t, "ca"), newTestCA(t, "other")
	cluster := connCluster(t, kfake.TLS(ca.server(t, ca)))
	mount := &secretMount{dir: t.TempDir()}
	mount.swap(t, mount.issued(t, ca, time.Now().Add(time.Hour)))
	strange := &secretMount{dir: t.TempDir()}
	strange.swap(t, strange.issued(t, other, time.Now().Add(time.Hour)))

	for _, test := range []struct {
		name string
		edit func(*TLS)
		want string // in the error; empty for none
	}{
		{"all as it should be", func(*TLS) {}, ""},
		{"the name of the certificate", func(c *TLS) { c.ServerName = "broker" }, ""},
		{"another name", func(c *TLS) { c.ServerName = "elsewhere" }, "not elsewhere"},
		{"another authority", func(c *TLS) { c.CAFile = strange.path("ca.crt") }, "unknown authority"},
		{"another authority, unverified", func(c *TLS) { c.CAFile, c.InsecureSkipVerify = strange.path("ca.crt"), true }, ""},
		{"no client certificate", func(c *TLS) { c.CertFile, c.KeyFile = "", "" }, "certificate required"},
		{
			"a client certificate of another authority",
			func(c *TLS) { c.CertFile, c.KeyFile = strange.path("tls.crt"), strange.path("tls.key") }, "unknown certificate authority",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Connection{Brokers: cluster.ListenAddrs(), TLS: mount.tls()}
			test.edit(&c.TLS)
			opts, _ := connOptions(t, c)
			err := connPing(t, connClient(t, opts...))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestRotatedCertificatesAreUsedWithoutARestart(t *testing.T) {
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	var server atomic.Pointer[tls.Config]
	server.Store(before.server(t, before))
	cluster := connCluster(t, kfake.TLS(&tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return server.Load(), nil },
	}))
	mount := &secretMount{dir: t.TempDir()}
	mount.swap(t, mount.issued(t, before, time.Now().Add(time.Hour)))
	metrics := NewConnectionMetrics(prometheus.NewRegistry())
	opts, logs := connOptions(t, Connection{Brokers: cluster.ListenAddrs(), TLS: mount.tls(), Metrics: metrics})
	ping := func(when string) {
		t.Helper()
		if err := connPing(t, connClient(t, opts...)); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	count := func(message string) int { return logs.FilterMessage(message).Len() }
	const reloaded, broken = "certificate files reloaded", "certificate files changed and cannot be used; the old ones stay in use"

	ping("at start")
	server.Store(after.server(t, after))
	if err := connPing(t, connClient(t, opts...)); err == nil {
		t.Fatal("the old certificates are taken by the new broker: the test shows nothing")
	}
	expiry := time.Now().Add(2 * time.Hour)
	mount.swap(t, mount.issued(t, after, expiry))
	ping("after the rotation")
	if n := count(reloaded); n != 2 {
		t.Errorf("%d reloads logged, want that of the CA and of the client certificate", n)
	}
	if got := connMetric(t, metrics.certificateExpiry); got != float64(expiry.Unix()) {
		t.Errorf("expiry metric is %v, want %v", got, expiry.Unix())
	}

	cert, _ := after.issue(t, "bide", expiry)
	_, key := after.issue(t, "bide", expiry)
	for i, files := range []map[string][]byte{
		{"ca.crt": []byte("not a certificate"), "tls.crt": cert, "tls.key": key}, // the key is another one's
		mount.issued(t, after, time.Now().Add(-time.Minute)),                     // expired
		{"ca.crt": after.pem}, // nothing there
	} {
		mount.swap(t, files)
		ping("with broken files")
		ping("with broken files, again")
		if n := count(broken); n != []int{2, 3, 4}[i] {
			t.Errorf("broken files %d: %d warnings in all", i, n)
		}
	}
	ca, client := metrics.reloadFailures.WithLabelValues(certificateCA), metrics.reloadFailures.WithLabelValues(certificateClient)
	if a, b := connMetric(t, ca), connMetric(t, client); a != 1 || b != 3 {
		t.Errorf("reload failures: ca %v, client %v; want 1 and 3", a, b)
	}
}

// connMetric returns the value of a counter or gauge.
func connMetric(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := metric.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func TestTLSAtOneEndOnlyIsNamed(t *testing.T) {
	ca := newTestCA(t, "ca")
	conn := TLS{Enabled: true, CAFile: writeTestFile(t, "ca.pem", string(ca.pem))}
	for _, test := range []struct {
		name    string
		cluster *kfake.Cluster
		conn    TLS
		want    string
	}{
		{"the client's", connCluster(t), conn, "tls handshake"},
		{"the broker's", connCluster(t, kfake.TLS(ca.server(t, nil))), TLS{}, "is TLS missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts, _ := connOptions(t, Connection{Brokers: test.cluster.ListenAddrs(), TLS: test.conn, DialTimeout: time.Second / 4})
			err := connPing(t, connClient(t, opts...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
