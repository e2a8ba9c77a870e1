package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"go.uber.org/zap"
)

// SASLMechanism is how a client proves who it is; empty for not at all.
type SASLMechanism string

// The mechanisms.
const (
	SASLPlain       SASLMechanism = "PLAIN"
	SASLScram256    SASLMechanism = "SCRAM-SHA-256"
	SASLScram512    SASLMechanism = "SCRAM-SHA-512"
	SASLOAuthBearer SASLMechanism = "OAUTHBEARER"
	SASLAWSMSKIAM   SASLMechanism = "AWS_MSK_IAM"
)

// takesPassword says whether the mechanism takes a user name and a password.
func (m SASLMechanism) takesPassword() bool {
	return m == SASLPlain || m == SASLScram256 || m == SASLScram512
}

// secretInClear says whether the mechanism sends what it must not show without encryption.
func (m SASLMechanism) secretInClear() bool { return m == SASLPlain || m == SASLOAuthBearer }

// SASL says how the client authenticates.
type SASL struct {
	Mechanism SASLMechanism `koanf:"mechanism"`
	// Username, and Password or PasswordFile, are for PLAIN and SCRAM. A file is read at every
	// authentication, so a password can be changed without a restart; white space at its end is
	// not part of the password.
	Username     string `koanf:"username"`
	Password     Secret `koanf:"password"`
	PasswordFile string `koanf:"password-file"`
	OAuth        OAuth  `koanf:"oauth"`
	AWS          AWS    `koanf:"aws"`
}

// Secret is text that is never shown: whatever prints or encodes it gets a placeholder.
type Secret string

// String returns a placeholder, or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(secret)"
}

// GoString returns what String returns.
func (s Secret) GoString() string { return s.String() }

// MarshalText returns what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *SASL) validate(faults *faultList, transport *TLS) {
	switch m := s.Mechanism; {
	case m == "":
		s.rejectUnused(faults)
		return
	case m.takesPassword():
		s.validatePassword(faults)
	case m == SASLOAuthBearer:
		s.OAuth.validate(faults)
	case m == SASLAWSMSKIAM:
		s.AWS.validate(faults)
		if !transport.Enabled {
			faults.add("sasl.mechanism", "AWS_MSK_IAM needs tls.enabled: true")
		}
	default:
		faults.add("sasl.mechanism", "unknown %q; one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM, or empty for none", string(m))
		return
	}
	s.rejectUnused(faults)
}

func (s *SASL) validatePassword(faults *faultList) {
	if s.Username == "" {
		faults.add("sasl.username", "missing; %s needs it", s.Mechanism)
	}
	switch {
	case s.Password != "" && s.PasswordFile != "":
		faults.add("sasl.password-file", "set together with sasl.password; keep one")
	case s.Password == "" && s.PasswordFile == "":
		faults.add("sasl.password-file", "missing; %s needs it, or sasl.password", s.Mechanism)
	case s.PasswordFile != "":
		if _, err := readSecret(s.PasswordFile); err != nil {
			faults.add("sasl.password-file", "%w", err)
		}
	}
}

// rejectUnused refuses settings of another mechanism: whoever wrote them expects them to work.
func (s *SASL) rejectUnused(faults *faultList) {
	name := "empty"
	if s.Mechanism != "" {
		name = string(s.Mechanism)
	}
	unused := func(path string, set bool) {
		if set {
			faults.add(path, "set, but sasl.mechanism is %s", name)
		}
	}
	if !s.Mechanism.takesPassword() {
		unused("sasl.username", s.Username != "")
		unused("sasl.password", s.Password != "")
		unused("sasl.password-file", s.PasswordFile != "")
	}
	if s.Mechanism != SASLOAuthBearer {
		unused("sasl.oauth", s.OAuth.set())
	}
	if s.Mechanism != SASLAWSMSKIAM {
		unused("sasl.aws", s.AWS != AWS{})
	}
}

// mechanism returns what authenticates the client's connections; nil for none.
func (s *SASL) mechanism(log *zap.Logger, metrics *ConnectionMetrics) (sasl.Mechanism, error) {
	report := &credentialReport{log: log, metrics: metrics}
	switch s.Mechanism {
	case SASLPlain:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pass, err := s.password()
			return plain.Auth{User: s.Username, Pass: pass}, report.result(err)
		}), nil
	case SASLScram256:
		return scram.Sha256(s.scramAuth(report)), nil
	case SASLScram512:
		return scram.Sha512(s.scramAuth(report)), nil
	case SASLOAuthBearer:
		tokens := s.OAuth.tokens(log)
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := tokens(ctx)
			return oauth.Auth{Token: token, Extensions: s.OAuth.Extensions}, report.result(err)
		}), nil
	case SASLAWSMSKIAM:
		return s.AWS.mechanism(report)
	}
	return nil, nil
}

func (s *SASL) scramAuth(report *credentialReport) func(context.Context) (scram.Auth, error) {
	return func(context.Context) (scram.Auth, error) {
		pass, err := s.password()
		return scram.Auth{User: s.Username, Pass: pass}, report.result(err)
	}
}

// password returns the password as it is now.
func (s *SASL) password() (string, error) {
	if s.PasswordFile != "" {
		return readSecret(s.PasswordFile)
	}
	return string(s.Password), nil
}

// maxSecretBytes bounds a secret's file. Tokens with many groups reach some ten KiB; a file beyond
// this is not a secret but a wrong path.
const maxSecretBytes = 64 << 10

// readSecret returns what a file holds, without white space at its end, which editors add.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	switch secret := strings.TrimRight(string(content), " \t\r\n"); {
	case err != nil:
		return "", err
	case len(content) > maxSecretBytes:
		return "", fmt.Errorf("%s: larger than %d bytes", path, maxSecretBytes)
	case secret == "":
		return "", fmt.Errorf("%s: empty", path)
	default:
		return secret, nil
	}
}

// credentialReport says when credentials cannot be had, and when they can again. The client itself
// only tries again.
type credentialReport struct {
	log     *zap.Logger
	metrics *ConnectionMetrics

	mu struct {
		sync.Mutex
		fault string
	}
}

// result passes err on as one that a retry may mend: files come back, token endpoints too.
func (r *credentialReport) result(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if r.mu.fault != "" {
			r.mu.fault = ""
			r.log.Info("credentials can be had again")
		}
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err // the client is closing
	}
	r.metrics.credentialFailed()
	if fault := err.Error(); fault != r.mu.fault {
		r.mu.fault = fault
		r.log.Warn("no credentials to authenticate with; trying again", zap.Error(err))
	}
	return &credentialError{err}
}

// credentialError says that there are no credentials. It is temporary, so that the client tries again instead of failing what it was to send.
type credentialError struct{ error }

func (e *credentialError) Error() string   { return "get credentials: " + e.error.Error() }
func (e *credentialError) Unwrap() error   { return e.error }
func (e *credentialError) Temporary() bool { return true }
