package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuth says where the token of OAUTHBEARER comes from: from a file that somebody keeps fresh (a
// Kubernetes projected service account, an agent), or from a token endpoint by client credentials
// (RFC 6749 section 4.4).
type OAuth struct {
	// TokenFile is read at every authentication.
	TokenFile string `koanf:"token-file"`

	// TokenURL is the token endpoint. A token is kept for four fifths of its life, and until its end
	// where the endpoint cannot be reached.
	TokenURL string `koanf:"token-url"`
	ClientID string `koanf:"client-id"`
	// ClientSecret, or ClientSecretFile, which is read whenever a token is asked for.
	ClientSecret     Secret   `koanf:"client-secret"`
	ClientSecretFile string   `koanf:"client-secret-file"`
	Scopes           []string `koanf:"scopes"`
	// Params are further parameters for the token endpoint, such as audience.
	Params map[string]string `koanf:"params"`
	// CAFile has the certificates that vouch for the token endpoint; empty: those of the system.
	CAFile string `koanf:"ca-file"`

	// Extensions are sent to the broker with the token (RFC 7628), such as logicalCluster.
	Extensions map[string]string `koanf:"extensions"`
}

// tokenTimeout bounds one request to the token endpoint: connections wait for it.
const tokenTimeout = 10 * time.Second

// What extensions may look like (RFC 7628 section 3.1, as Kafka reads it).
var (
	extensionName  = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionValue = regexp.MustCompile(`^[\x21-\x7E \t\r\n]+$`)
)

func (o *OAuth) set() bool {
	return o.TokenFile != "" || o.endpointSet() || len(o.Extensions) > 0
}

func (o *OAuth) endpointSet() bool {
	return o.TokenURL != "" || o.ClientID != "" || o.ClientSecret != "" || o.ClientSecretFile != "" ||
		len(o.Scopes) > 0 || len(o.Params) > 0 || o.CAFile != ""
}

func (o *OAuth) validate(faults *faultList) {
	switch {
	case o.TokenFile != "" && o.endpointSet():
		faults.add("sasl.oauth.token-file", "set together with client credentials; keep one")
	case o.TokenFile != "":
		if _, err := readSecret(o.TokenFile); err != nil {
			faults.add("sasl.oauth.token-file", "%w", err)
		}
	case !o.endpointSet():
		faults.add("sasl.oauth", "OAUTHBEARER needs token-file, or token-url with client-id and client-secret-file")
	default:
		o.validateEndpoint(faults)
	}
	for name, value := range o.Extensions {
		if !extensionName.MatchString(name) || name == "auth" {
			faults.add("sasl.oauth.extensions", "name %q is not letters only, or is reserved", name)
		} else if !extensionValue.MatchString(value) {
			faults.add("sasl.oauth.extensions", "value of %s is empty or not printable ASCII", name)
		}
	}
}

func (o *OAuth) validateEndpoint(faults *faultList) {
	if u, err := url.Parse(o.TokenURL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		faults.add("sasl.oauth.token-url", "not a URL that begins with https://")
	} else if u.User != nil {
		faults.add("sasl.oauth.token-url", "holds credentials; use client-id and client-secret-file")
	}
	if o.ClientID == "" {
		faults.add("sasl.oauth.client-id", "missing; token-url needs it")
	}
	switch {
	case o.ClientSecret != "" && o.ClientSecretFile != "":
		faults.add("sasl.oauth.client-secret-file", "set together with client-secret; keep one")
	case o.ClientSecret == "" && o.ClientSecretFile == "":
		faults.add("sasl.oauth.client-secret-file", "missing; token-url needs it, or client-secret")
	case o.ClientSecretFile != "":
		if _, err := readSecret(o.ClientSecretFile); err != nil {
			faults.add("sasl.oauth.client-secret-file", "%w", err)
		}
	}
	if o.CAFile != "" {
		if _, _, err := readParsed(parseRoots, o.CAFile); err != nil {
			faults.add("sasl.oauth.ca-file", "%w", err)
		}
	}
}

// tokens returns what gives the token to authenticate with. Safe for concurrent use.
func (o *OAuth) tokens(log *zap.Logger) func(ctx context.Context) (string, error) {
	if o.TokenFile != "" {
		return func(context.Context) (string, error) { return readSecret(o.TokenFile) }
	}
	return (&tokenCache{ask: (&tokenEndpoint{conf: o}).ask, log: log}).current
}

// tokenCache keeps the last token.
type tokenCache struct {
	ask func(ctx context.Context) (*oauth2.Token, error)
	log *zap.Logger

	mu struct {
		sync.Mutex // held while asking: connections opened together need one token, not one each
		token      *oauth2.Token
		refresh    time.Time // from when on another is asked for
	}
}

// current returns the kept token, or a new one. One without an expiry is not kept.
func (c *tokenCache) current(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.mu.token != nil && now.Before(c.mu.refresh) {
		return c.mu.token.AccessToken, nil
	}
	token, err := c.ask(ctx)
	if err != nil {
		if c.mu.token != nil && now.Before(c.mu.token.Expiry) {
			c.log.Warn("token endpoint gives no new token; the old one is still good",
				zap.Time("until", c.mu.token.Expiry), zap.Error(err))
			return c.mu.token.AccessToken, nil
		}
		return "", fmt.Errorf("token endpoint: %w", err)
	}
	// The broker asks for authentication again shortly before a token's end; by then it must be given
	// another one. Four fifths is what the Java client takes.
	c.mu.token, c.mu.refresh = nil, time.Time{}
	if life := token.Expiry.Sub(now); !token.Expiry.IsZero() && life > 0 {
		c.mu.token, c.mu.refresh = token, now.Add(life/5*4)
	}
	return token.AccessToken, nil
}

// tokenEndpoint asks for tokens. Not safe for concurrent use.
type tokenEndpoint struct {
	conf    *OAuth
	secret  string
	request *clientcredentials.Config // made anew with the secret; remembers how the endpoint takes it
}

func (e *tokenEndpoint) ask(ctx context.Context) (*oauth2.Token, error) {
	secret := string(e.conf.ClientSecret)
	if e.conf.ClientSecretFile != "" {
		var err error
		if secret, err = readSecret(e.conf.ClientSecretFile); err != nil {
			return nil, err
		}
	}
	if e.request == nil || secret != e.secret {
		params := url.Values{}
		for name, value := range e.conf.Params {
			params.Set(name, value)
		}
		e.secret = secret
		e.request = &clientcredentials.Config{
			ClientID: e.conf.ClientID, ClientSecret: secret,
			TokenURL: e.conf.TokenURL, Scopes: e.conf.Scopes, EndpointParams: params,
		}
	}
	client, err := e.conf.httpClient()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	token, err := e.request.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response != nil {
		// Its own text has the whole body of the answer, which is not ours to log.
		return nil, fmt.Errorf("%s %s %s", refused.Response.Status, refused.ErrorCode, refused.ErrorDescription)
	}
	return token, err
}

// httpClient returns a client for one request: they are an hour apart, and the CA file may have
// changed meanwhile.
func (o *OAuth) httpClient() (*http.Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	if o.CAFile != "" {
		roots, _, err := readParsed(parseRoots, o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.CAFile, err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return &http.Client{Transport: transport, Timeout: tokenTimeout}, nil
}
