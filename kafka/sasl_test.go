package kafka

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestPasswordsAuthenticateByEveryMechanism(t *testing.T) {
	const password = "correct horse=,battery"
	ca := newTestCA(t, "ca")
	caFile := writeTestFile(t, "ca.pem", string(ca.pem))
	for _, mechanism := range []SASLMechanism{SASLPlain, SASLScram256, SASLScram512} {
		t.Run(string(mechanism), func(t *testing.T) {
			cluster := connCluster(t, kfake.TLS(ca.server(t, nil)), kfake.EnableSASL(), kfake.Superuser(string(mechanism), "bide", password))
			c := Connection{
				Brokers: cluster.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: caFile},
				SASL: SASL{Mechanism: mechanism, Username: "bide", Password: password},
			}
			opts, logs := connOptions(t, c)
			if err := connPing(t, connClient(t, opts...)); err != nil {
				t.Error(err)
			}
			c.SASL.Password = "wrong"
			opts, wrongLogs := connOptions(t, c)
			err := connPing(t, connClient(t, opts...))
			if err == nil {
				t.Error("a wrong password is taken")
			}
			for _, text := range []string{logText(logs), logText(wrongLogs), err.Error()} {
				if strings.Contains(text, "horse") || strings.Contains(text, "wrong") {
					t.Errorf("shows the password: %s", text)
				}
			}
		})
	}
}

func TestAChangedPasswordFileIsReadAtTheNextAuthentication(t *testing.T) {
	cluster := connCluster(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "bide", "new"))
	path := writeTestFile(t, "password", "old\n")
	opts, _ := connOptions(t, Connection{
		Brokers: cluster.ListenAddrs(), SASL: SASL{Mechanism: SASLScram512, Username: "bide", PasswordFile: path},
	})
	cl := connClient(t, opts...)
	if connPing(t, cl) == nil {
		t.Fatal("the old password is taken: the test shows nothing")
	}
	if err := os.WriteFile(path, []byte("new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connPing(t, cl); err != nil {
		t.Errorf("the same client, with the new password: %v", err)
	}
}

func TestMissingCredentialsAreReportedOnceAndRetried(t *testing.T) {
	cluster := connCluster(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "bide", "secret"))
	path := writeTestFile(t, "password", "secret")
	metrics := NewConnectionMetrics(prometheus.NewRegistry())
	opts, logs := connOptions(t, Connection{
		Brokers: cluster.ListenAddrs(), Metrics: metrics,
		SASL: SASL{Mechanism: SASLPlain, Username: "bide", PasswordFile: path},
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	cl := connClient(t, opts...)
	if err := connPing(t, cl); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is no file", err)
	}
	if n := connMetric(t, metrics.credentialFailures); n < 2 {
		t.Errorf("%v failures counted: the client did not try again", n)
	}
	if n := logs.FilterMessage("no credentials to authenticate with; trying again").Len(); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connPing(t, cl); err != nil {
		t.Error(err)
	}
	if n := logs.FilterMessage("credentials can be had again").Len(); n != 1 {
		t.Errorf("%d notes of the return, want one", n)
	}
}

func TestASecretFileIsReadWithoutItsLineEnd(t *testing.T) {
	for content, want := range map[string]string{
		"p": "p", "p\n": "p", "p \r\n\n": "p", " p q\n": " p q", "": "", "\n": "", strings.Repeat("x", maxSecretBytes+1): "",
	} {
		got, err := readSecret(writeTestFile(t, "secret", content))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%.20q: got %q, %v", content, got, err)
		}
	}
	if _, err := readSecret(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestClearTextCredentialsAreWarnedOf(t *testing.T) {
	token := writeTestFile(t, "token", "t")
	for _, test := range []struct {
		conn Connection
		want int
	}{
		{Connection{SASL: SASL{Mechanism: SASLPlain, Username: "u", Password: "p"}}, 1},
		{Connection{SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenFile: token}}}, 1},
		{Connection{SASL: SASL{Mechanism: SASLScram256, Username: "u", Password: "p"}}, 0},
		{Connection{TLS: TLS{Enabled: true, InsecureSkipVerify: true}, SASL: SASL{Mechanism: SASLPlain, Username: "u", Password: "p"}}, 1},
		{Connection{SASL: SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenURL: "http://idp/token", ClientID: "c", ClientSecret: "s"}}}, 2},
	} {
		core, logs := observer.New(zap.WarnLevel)
		test.conn.Brokers = []string{"localhost"}
		if _, err := test.conn.Options(zap.New(core)); err != nil {
			t.Fatal(err)
		}
		if logs.Len() != test.want {
			t.Errorf("%+v: %d warnings, want %d: %s", test.conn, logs.Len(), test.want, logText(logs))
		}
	}
}

// authenticate returns the first bytes that the connection's mechanism sends.
func authenticate(t *testing.T, s *SASL, host string) (string, error) {
	t.Helper()
	m, err := s.mechanism(zap.NewNop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name() != string(s.Mechanism) {
		t.Errorf("mechanism %s instead of %s", m.Name(), s.Mechanism)
	}
	_, first, err := m.Authenticate(context.Background(), host)
	return string(first), err
}
