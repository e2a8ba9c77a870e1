package kafka

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const mskHost = "b-1.cluster.abc.c2.kafka.eu-west-1.amazonaws.com:9098"

// plainAWS makes the test's process one that has nothing but a pair of keys.
func plainAWS(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS", "AWS_CA_BUNDLE",
	} {
		t.Setenv(name, "")
	}
	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("AWS_CONFIG_FILE", missing)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", missing)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDBASE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "base-secret")
}

// challenge returns what the client sends to a broker.
func challenge(t *testing.T, conf AWS, host string) map[string]string {
	t.Helper()
	first, err := authenticate(t, &SASL{Mechanism: SASLAWSMSKIAM, AWS: conf}, host)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]string
	if err := json.Unmarshal([]byte(first), &fields); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(first, "secret") {
		t.Errorf("holds the secret key: %s", first)
	}
	return fields
}

func TestAWSSignsWithTheCredentialsOfTheEnvironment(t *testing.T) {
	plainAWS(t)
	got := challenge(t, AWS{}, mskHost)
	if c := got["x-amz-credential"]; !strings.HasPrefix(c, "AKIDBASE/") || !strings.Contains(c, "/eu-west-1/kafka-cluster/") {
		t.Errorf("credential %q", c)
	}
	if got["host"] != strings.TrimSuffix(mskHost, ":9098") || !strings.HasPrefix(got["user-agent"], "bide/") {
		t.Errorf("got %v", got)
	}
}

func TestAWSTakesTheRegionWhereTheBrokersNameHasNone(t *testing.T) {
	plainAWS(t)
	if c := challenge(t, AWS{Region: "ap-south-1"}, "kafka.example.org:9098")["x-amz-credential"]; !strings.Contains(c, "/ap-south-1/") {
		t.Errorf("credential %q", c)
	}
}

func TestAWSReadsAProfileAndRefusesOneThatIsNotThere(t *testing.T) {
	plainAWS(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", writeTestFile(t, "credentials",
		"[other]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = other-secret\n"))
	if c := challenge(t, AWS{Profile: "other"}, mskHost)["x-amz-credential"]; !strings.HasPrefix(c, "AKIDOTHER/") {
		t.Errorf("credential %q", c)
	}
	if _, err := (&AWS{Profile: "none"}).credentials(); err == nil {
		t.Error("a profile that is not there is taken")
	}
	if _, err := (&AWS{Profile: "other", RoleARN: "arn:aws:iam::1:role/r"}).credentials(); err == nil {
		t.Error("a role without a region is taken")
	}
}

func TestAWSAssumesARoleAndRenewsItsCredentials(t *testing.T) {
	plainAWS(t)
	var asked atomic.Int32
	life := time.Hour
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if r.Form.Get("RoleArn") != "arn:aws:iam::123456789012:role/bide" || r.Form.Get("RoleSessionName") != "orders" || r.Form.Get("ExternalId") != "x-1" {
			t.Errorf("asked for %v", r.Form)
		}
		w.Header().Set("Content-Type", "text/xml")
		fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>AKIDROLE%d</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`, asked.Add(1), time.Now().Add(life).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	conf := AWS{Region: "eu-west-1", RoleARN: "arn:aws:iam::123456789012:role/bide", SessionName: "orders", ExternalID: "x-1"}
	got := challenge(t, conf, mskHost)
	if !strings.HasPrefix(got["x-amz-credential"], "AKIDROLE1/") || got["x-amz-security-token"] != "session" {
		t.Errorf("got %v", got)
	}

	for _, test := range []struct {
		life time.Duration
		want int32 // how many more are asked for by two uses
	}{{time.Hour, 1}, {awsExpiryWindow / 2, 2}} {
		life = test.life
		before := asked.Load()
		credentials, err := conf.credentials()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := credentials.Retrieve(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := asked.Load() - before; n != test.want {
			t.Errorf("credentials that live %v: asked %d times, want %d", test.life, n, test.want)
		}
	}
}
