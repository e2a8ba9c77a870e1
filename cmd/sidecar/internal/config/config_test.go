package config_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/bide-mq/bide/cmd/sidecar/internal/config"
)

// load reads a configuration from a file's text (none if empty), variables and flags.
func load(t *testing.T, yaml string, environ []string, args ...string) (config.Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(flags, config.Default())
	if yaml != "" {
		path := filepath.Join(t.TempDir(), "bide.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Default(), flags, environ)
}

// faultKeys returns the key, or the source where there is no key, of every fault.
func faultKeys(t *testing.T, err error) []string {
	t.Helper()
	var faults *config.FaultError
	if !errors.As(err, &faults) {
		t.Fatalf("%v, want a FaultError", err)
	}
	var out []string
	for _, f := range faults.Faults {
		if f.Key != "" {
			out = append(out, f.Key)
		} else {
			out = append(out, f.Source)
		}
	}
	return out
}

func TestDefaultsAreValid(t *testing.T) {
	conf, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(conf.Ingress) != 1 || conf.Ingress[0].Topic != "delay-ingress" || conf.Group != "bide" {
		t.Errorf("defaults: %+v", conf)
	}
}

func TestFlagsWinOverVariablesOverFileOverDefaults(t *testing.T) {
	const yaml = "group: file\ninstance-id: file\nlog: {level: debug}\nretry:\n  backoff: 2s\n"
	environ := []string{"BIDE_GROUP=variable", "BIDE_INSTANCE_ID=variable", "BIDE_RETRY_MAX_BACKOFF=1h"}
	conf, err := load(t, yaml, environ, "--group", "flag")
	if err != nil {
		t.Fatal(err)
	}
	if conf.Group != "flag" || conf.InstanceID != "variable" || conf.Log.Level != "debug" || conf.Log.Format != "json" {
		t.Errorf("group %s, instance %s, level %s, format %s", conf.Group, conf.InstanceID, conf.Log.Level, conf.Log.Format)
	}
	if conf.Retry.Backoff != 2*time.Second || conf.Retry.MaxBackoff != time.Hour {
		t.Errorf("retry %+v", conf.Retry)
	}
}

func TestFileIsNamedByFlagOrVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bide.yaml")
	if err := os.WriteFile(path, []byte("group: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := load(t, "", []string{"BIDE_CONFIG=" + path})
	if err != nil || conf.Group != "file" {
		t.Errorf("by variable: group %q, %v", conf.Group, err)
	}
	_, err = load(t, "", nil, "--config", path+".not")
	if err == nil || !strings.Contains(err.Error(), path+".not") {
		t.Errorf("a file that is not there: %v, want an error that names it", err)
	}
}

func TestAllFaultsOfAllSourcesAreReportedAtOnce(t *testing.T) {
	const yaml = `
broker: x:1
retry:
  backoff: 5
  nothing: 1
tls: true
data-cache: 10 potatoes
topics: {partitions: many}
ingress:
  - {topic: a, delay: -5s, colour: red}
  - 17.5
sasl: {mechanism: MAGIC}
`
	environ := []string{"BIDE_BROKRES=x", "BIDE_DELIVERY=twice", "BIDE_PPROF=perhaps", "OTHER=1"}
	_, err := load(t, yaml, environ, "--session-timeout", "soon", "--http-addr", "nowhere", "--transactions", "99999999999999999999")
	got := faultKeys(t, err)
	want := []string{
		"BIDE_BROKRES", "broker", "data-cache", "delivery", "http-addr", "ingress[0].colour", "ingress[0].delay", "ingress[1]",
		"pprof", "retry.backoff", "retry.nothing", "sasl.mechanism", "session-timeout", "tls", "topics.partitions", "transactions",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("faults of\n %v\nwant\n %v\n%v", got, want, err)
	}
	for _, part := range []string{
		"did you mean brokers?", "did you mean BIDE_BROKERS?", "(BIDE_DELIVERY)", "(--session-timeout)", `write 5s for seconds`, "16 faults", "bide.yaml",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("text lacks %q:\n%v", part, err)
		}
	}
}

func TestBadCombinationsAreFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		yaml string
		want []string
	}{
		"dead letters into an ingress":       {"ingress: [a]\ndead-letter-topic: a", []string{"dead-letter-topic"}},
		"a target that is an ingress":        {"ingress: [a, {topic: b, target: a}]", []string{"ingress[1].target"}},
		"an ingress twice":                   {"ingress: [a, a]", []string{"ingress[1].topic"}},
		"no ingress":                         {"ingress: []", []string{"ingress"}},
		"an ingress without a name":          {"ingress: [{target: b}]", []string{"ingress[0].topic"}},
		"a name that is none":                {"ingress: ['a b']", []string{"ingress[0].topic"}},
		"a delay beyond the longest":         {"ingress: [{topic: a, delay: 2h, max-delay: 1h}]", []string{"ingress[0].delay"}},
		"a delay of less than a millisecond": {"ingress: [{topic: a, delay: 1500us}]", []string{"ingress[0].delay"}},
		"profiles without http":              {"http-addr: ''\npprof: true", []string{"pprof"}},
		"a transaction that is too long":     {"transaction-timeout: 16s", []string{"transaction-timeout"}},
		"delivery as long as a transaction":  {"delivery-timeout: 10s", []string{"delivery-timeout"}},
		"pauses the wrong way round":         {"retry: {backoff: 1m, max-backoff: 1s}", []string{"retry.max-backoff"}},
		"an instance id with spaces":         {"instance-id: a b", []string{"instance-id"}},
		"an allowed target that is none":     {"allow: ['or/ders']", []string{"allow[0]"}},
		"an ingress that is internal":        {"ingress: [__consumer_offsets]", []string{"topics"}},
		"a certificate without its key":      {"tls: {enabled: true, cert-file: /nowhere/cert}", []string{"tls.key-file"}},
		"a password without a mechanism":     {"sasl: {password: x}", []string{"sasl.password"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.yaml, nil)
			if got := faultKeys(t, err); !slices.Equal(got, tc.want) {
				t.Errorf("faults of %v, want %v: %v", got, tc.want, err)
			}
		})
	}
}

func TestEmptyVariablesAndKubernetesServiceLinksAreNoSettings(t *testing.T) {
	conf, err := load(t, "group: file\n", []string{
		"BIDE_GROUP=", "BIDE_SERVICE_HOST=10.0.0.1", "BIDE_SERVICE_PORT=80", "BIDE_SERVICE_PORT_HTTP=80", "BIDE_PORT=tcp://10.0.0.1:80",
		"BIDE_PORT_80_TCP=tcp://10.0.0.1:80", "BIDE_PORT_80_TCP_ADDR=10.0.0.1", "BIDE_METRICS_SERVICE_HOST=10.0.0.2", "BIDE_METRICS_PORT_80_TCP_PROTO=tcp",
	})
	if err != nil || conf.Group != "file" {
		t.Errorf("group %q, %v", conf.Group, err)
	}
}

func TestIngressComesAsNamesOrWithSettings(t *testing.T) {
	const yaml = "ingress:\n  - {topic: retry.5m, target: orders, delay: 5m, max-delay: 49d18h, partitions: 3}\n  - plain\n"
	retry := config.Ingress{Topic: "retry.5m", Target: "orders", Delay: 5 * time.Minute, MaxDelay: 49*24*time.Hour + 18*time.Hour, Partitions: 3}
	plain := config.Ingress{Topic: "plain"}
	for name, tc := range map[string]struct {
		yaml    string
		environ []string
		args    []string
		want    []config.Ingress
	}{
		"file":                          {yaml, nil, nil, []config.Ingress{retry, plain}},
		"names keep the file's setting": {yaml, nil, []string{"--ingress", "new, retry.5m"}, []config.Ingress{{Topic: "new"}, retry}},
		"flag given twice":              {"", nil, []string{"--ingress", "a", "--ingress", "b"}, []config.Ingress{{Topic: "a"}, {Topic: "b"}}},
		"variable":                      {"", []string{"BIDE_INGRESS=a,b"}, nil, []config.Ingress{{Topic: "a"}, {Topic: "b"}}},
		"variable with settings":        {"", []string{`BIDE_INGRESS=[{topic: retry.5m, target: orders, delay: 5m, max-delay: 49d18h, partitions: 3}, plain]`}, nil, []config.Ingress{retry, plain}},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := load(t, tc.yaml, tc.environ, tc.args...)
			if err != nil || !slices.Equal(conf.Ingress, tc.want) {
				t.Errorf("%+v, %v, want %+v", conf.Ingress, err, tc.want)
			}
		})
	}
}

func TestSectionsWithNamesOfTheUsersOwn(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := load(t, "tls: {enabled: true}\nsasl: {mechanism: OAUTHBEARER, oauth: {token-file: "+token+", extensions: {logicalCluster: lkc, pool: 7}}}\n", nil)
	want := map[string]string{"logicalCluster": "lkc", "pool": "7"}
	if err != nil || !reflect.DeepEqual(conf.Connection.SASL.OAuth.Extensions, want) {
		t.Errorf("file: %v, %v, want %v", conf.Connection.SASL.OAuth.Extensions, err, want)
	}
	conf, err = load(t, "", []string{
		"BIDE_TLS_ENABLED=true", "BIDE_SASL_MECHANISM=OAUTHBEARER", "BIDE_SASL_OAUTH_TOKEN_FILE=" + token,
		"BIDE_SASL_OAUTH_EXTENSIONS=logicalCluster=lkc, pool=7",
	})
	if err != nil || !reflect.DeepEqual(conf.Connection.SASL.OAuth.Extensions, want) {
		t.Errorf("variable: %v, %v, want %v", conf.Connection.SASL.OAuth.Extensions, err, want)
	}
}

func TestEmptySectionsAreNoFaults(t *testing.T) {
	if _, err := load(t, "tls:\nsasl: {}\ngroup:\nretry:\n  backoff:\n", nil); err != nil {
		t.Error(err)
	}
}

func TestSecretsHaveNoFlagAndAreNeverShown(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(flags, config.Default())
	for _, s := range config.Settings() {
		if (flags.Lookup(s.Key) == nil) != s.Secret {
			t.Errorf("%s: secret %t, flag %v", s.Key, s.Secret, flags.Lookup(s.Key))
		}
		if strings.HasSuffix(s.Key, "password") || strings.HasSuffix(s.Key, "secret") {
			if !s.Secret {
				t.Errorf("%s is not marked as a secret", s.Key)
			}
		}
	}
	_, err := load(t, "sasl: {mechanism: PLAIN, password: hunter2}", []string{"BIDE_SASL_OAUTH_CLIENT_SECRET=hunter2"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error shows the secret, or is none: %v", err)
	}
}

// keysOf returns the path of every field with a koanf tag that is no section.
func keysOf(typ reflect.Type, prefix string) (out []string) {
	for i := range typ.NumField() {
		name, option, _ := strings.Cut(typ.Field(i).Tag.Get("koanf"), ",")
		field := typ.Field(i).Type
		switch {
		case option == "squash":
			out = append(out, keysOf(field, prefix)...)
		case name == "" || name == "-":
		case field.Kind() == reflect.Struct:
			out = append(out, keysOf(field, prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

func TestEverySettingIsDescribedOnceAndHasAVariableOfItsOwn(t *testing.T) {
	for _, tc := range []struct {
		settings []config.Setting
		typ      reflect.Type
	}{
		{config.Settings(), reflect.TypeFor[config.Config]()},
		{config.IngressSettings(), reflect.TypeFor[config.Ingress]()},
	} {
		var described []string
		variables := make(map[string]string)
		for _, s := range tc.settings {
			described = append(described, s.Key)
			if s.Doc == "" || strings.HasSuffix(s.Doc, ".") {
				t.Errorf("%s: doc %q is empty or ends in a full stop", s.Key, s.Doc)
			}
			if other := variables[s.Env()]; other != "" {
				t.Errorf("%s and %s share the variable %s", s.Key, other, s.Env())
			}
			variables[s.Env()] = s.Key
		}
		fields := keysOf(tc.typ, "")
		slices.Sort(fields)
		slices.Sort(described)
		if !slices.Equal(fields, described) {
			t.Errorf("fields\n %v\nbut settings\n %v", fields, described)
		}
	}
}

func TestEveryDefaultReadsAsWhatItIs(t *testing.T) {
	var environ []string
	for _, s := range config.Settings() {
		environ = append(environ, s.Env()+"="+s.Default())
	}
	got, err := load(t, "", environ)
	if err != nil {
		t.Fatal(err)
	}
	want, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range config.Settings() {
		if g, w := config.Text(&got, s.Key), config.Text(&want, s.Key); g != w {
			t.Errorf("%s: %q, want %q", s.Key, g, w)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1ms": time.Millisecond, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"1d": 24 * time.Hour, "49d18h": (49*24 + 18) * time.Hour, "365d": 365 * 24 * time.Hour, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := config.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "5", "abc", "-5s", "-1d", "1d-1h", "106752d", "106751d24h", "99999999999d", "1h1d", "d", "1y", "300000000h"} {
		if got, err := config.ParseDuration(text); err == nil {
			t.Errorf("%q: %s, want an error", text, got)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]config.Bytes{
		"0": 0, "17": 17, "17B": 17, "1KiB": 1024, "64MiB": 64 << 20, "1 GiB": 1 << 30, "5MB": 5e6, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := config.ParseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "1.5MiB", "-1", "1 potato", "9223372036854775808", "8388608TiB"} {
		if got, err := config.ParseBytes(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}

func FuzzDurationsAndSizesReadBackAsWritten(f *testing.F) {
	for _, seed := range []string{"49d18h", "1h30m", "0s", "64MiB", "1d0.000000001s", "17"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := config.ParseDuration(text); err == nil {
			if back, err := config.ParseDuration(config.FormatDuration(d)); d < 0 || err != nil || back != d {
				t.Errorf("%q: %d, written %s, read %d, %v", text, d, config.FormatDuration(d), back, err)
			}
		}
		if n, err := config.ParseBytes(text); err == nil {
			if back, err := config.ParseBytes(n.String()); n < 0 || err != nil || back != n {
				t.Errorf("%q: %d, written %s, read %d, %v", text, n, n, back, err)
			}
		}
	})
}
