package kafka

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"golang.org/x/oauth2"
)

func TestAChangedTokenFileIsReadAtTheNextAuthentication(t *testing.T) {
	path := writeTestFile(t, "token", "first\n")
	s := &SASL{Mechanism: SASLOAuthBearer, OAuth: OAuth{TokenFile: path, Extensions: map[string]string{"logicalCluster": "lkc-1"}}}
	first, err := authenticate(t, s, "")
	if want := "n,,\x01auth=Bearer first\x01logicalCluster=lkc-1\x01\x01"; err != nil || first != want {
		t.Errorf("got %q, %v", first, err)
	}
	if err := os.WriteFile(path, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if second, err := authenticate(t, s, ""); err != nil || !strings.Contains(second, "Bearer second\x01") {
		t.Errorf("got %q, %v", second, err)
	}
}

// tokenServer is a token endpoint that takes one client.
type tokenServer struct {
	*httptest.Server
	mu       sync.Mutex
	secret   string
	requests []string // what was asked for, without the credentials
}

func newTokenServer(t *testing.T, secret string) *tokenServer {
	t.Helper()
	s := &tokenServer{secret: secret}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // a handshake that fails is part of the test
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, secret, _ := r.BasicAuth()
	_ = r.ParseForm()
	w.Header().Set("Content-Type", "application/json")
	if id != "bide" || secret != s.secret {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"no such client","echo":%q}`, secret)
		return
	}
	s.requests = append(s.requests, r.Form.Encode())
	fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"bearer","expires_in":3600}`, len(s.requests))
}

func (s *tokenServer) setSecret(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = secret
}

func TestClientCredentialsGetAToken(t *testing.T) {
	server := newTokenServer(t, "hush")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	o := OAuth{
		TokenURL: server.URL, ClientID: "bide", ClientSecretFile: writeTestFile(t, "secret", "hush\n"),
		Scopes: []string{"kafka", "write"}, Params: map[string]string{"audience": "cluster"}, CAFile: writeTestFile(t, "ca.pem", string(ca)),
	}
	tokens := o.tokens(zap.NewNop())
	for range 3 {
		if token, err := tokens(t.Context()); err != nil || token != "token-1" {
			t.Fatalf("got %q, %v", token, err)
		}
	}
	want := "audience=cluster&grant_type=client_credentials&scope=kafka+write"
	if len(server.requests) != 1 || server.requests[0] != want {
		t.Errorf("asked %q, want %q once", server.requests, want)
	}

	endpoint := &tokenEndpoint{conf: &o}
	if _, err := endpoint.ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.setSecret("whisper")
	_, err := endpoint.ask(t.Context())
	if err == nil || !strings.Contains(err.Error(), "invalid_client") || strings.Contains(err.Error(), "hush") {
		t.Errorf("a refusal reads %v", err)
	}
	if err := os.WriteFile(o.ClientSecretFile, []byte("whisper"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := endpoint.ask(t.Context()); err != nil {
		t.Errorf("the changed secret is not used: %v", err)
	}
	o.CAFile = ""
	if _, err := endpoint.ask(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an endpoint that nobody vouches for is taken: %v", err)
	}
}

func TestATokenIsKeptForFourFifthsOfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, down := 0, false
		c := &tokenCache{log: zap.NewNop(), ask: func(context.Context) (*oauth2.Token, error) {
			asked++
			if down {
				return nil, errors.New("down")
			}
			return &oauth2.Token{AccessToken: fmt.Sprint("token-", asked), Expiry: time.Now().Add(time.Hour)}, nil
		}}
		start := time.Now()
		for _, step := range []struct {
			at    time.Duration
			down  bool
			token string
			asked int
		}{
			{0, false, "token-1", 1},
			{48*time.Minute - 1, false, "token-1", 1},
			{48 * time.Minute, false, "token-2", 2},
			{97 * time.Minute, true, "token-2", 3},                 // still good for eleven minutes
			{108*time.Minute - time.Second, true, "token-2", 4},    // for a second
			{108 * time.Minute, true, "", 5},                       // no more
			{108*time.Minute + time.Second, false, "token-6", 6},   // up again
			{108*time.Minute + time.Minute, true, "token-6", 6},    // kept
			{200*time.Minute + time.Minute, false, "token-7", 7},   // long gone
			{248*time.Minute + time.Minute, false, "token-8", 8},   // four fifths later
			{248*time.Minute + time.Minute, false, "token-8", 8},   // kept
			{400*time.Minute + time.Minute, true, "", 9},           // both gone
			{401*time.Minute + time.Minute, false, "token-10", 10}, // and back
		} {
			time.Sleep(step.at - time.Since(start))
			down = step.down
			token, err := c.current(t.Context())
			if token != step.token || asked != step.asked || (err != nil) != (step.token == "") {
				t.Errorf("at %v: %q, %v, asked %d times; want %q, %d", step.at, token, err, asked, step.token, step.asked)
			}
		}
	})
}

func TestATokenWithoutAnExpiryIsNotKept(t *testing.T) {
	asked := 0
	c := &tokenCache{log: zap.NewNop(), ask: func(context.Context) (*oauth2.Token, error) {
		asked++
		return &oauth2.Token{AccessToken: "t"}, nil
	}}
	for range 2 {
		if _, err := c.current(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}
