package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/bide-mq/bide/watchdog"
)

// ConfigKey is the flag, and with BIDE_ before it the variable, that names the file.
const ConfigKey = "config"

// Fault is one thing wrong with a configuration.
type Fault struct {
	// Key is the path of the setting, or empty where a source as a whole cannot be read.
	Key string
	// Source is where the setting was made: a file, a variable or a flag; empty for a default.
	Source string
	// Problem says what is wrong with it and, where that is not plain, what would be right.
	Problem string
}

func (f Fault) String() string {
	switch {
	case f.Key == "":
		return f.Source + ": " + f.Problem
	case f.Source == "":
		return f.Key + ": " + f.Problem
	default:
		return fmt.Sprintf("%s (%s): %s", f.Key, f.Source, f.Problem)
	}
}

// FaultError is all that is wrong with a configuration.
type FaultError struct{ Faults []Fault }

// Error lists all faults, one a line.
func (e *FaultError) Error() string {
	var b strings.Builder
	if len(e.Faults) == 1 {
		b.WriteString("the configuration has a fault:")
	} else {
		fmt.Fprintf(&b, "the configuration has %d faults:", len(e.Faults))
	}
	for _, f := range e.Faults {
		b.WriteString("\n  " + f.String())
	}
	return b.String()
}

// layer is one source of settings: the later layers win.
type layer struct {
	name   func(key string) string
	values *koanf.Koanf
}

// Load reads the configuration: base, then the file that --config or BIDE_CONFIG names, the variables
// of environ, the flags that were given, in this order. It returns a [FaultError] with every fault of
// all of them, those of [Config.Validate] included.
func Load(base Config, flags *pflag.FlagSet, environ []string) (Config, error) {
	var faults []Fault
	conf := base
	conf.sources = make(map[string]string)

	variables, fs := readEnv(environ)
	faults = append(faults, fs...)
	given := readFlags(flags)
	path := given.values.String(ConfigKey)
	if path == "" {
		path = variables.values.String(ConfigKey)
	}
	layers := []layer{variables, given}
	if path != "" {
		written, fs := readFile(path)
		faults = append(faults, fs...)
		layers = slices.Insert(layers, 0, written)
	}
	for _, l := range layers {
		faults = append(faults, conf.apply(l)...)
	}
	bad := make(map[string]bool)
	for _, f := range faults {
		bad[f.Key] = true
	}
	for _, f := range conf.faults() {
		if !bad[f.Key] { // what cannot be read is not judged too
			faults = append(faults, f)
		}
	}
	if len(faults) > 0 {
		return Config{}, &FaultError{Faults: faults}
	}
	return conf, nil
}

// apply sets what the layer has.
func (c *Config) apply(l layer) (faults []Fault) {
	fields := leaves(reflect.ValueOf(c).Elem(), "")
	for _, s := range settings {
		raw := l.values.Get(s.Key)
		if raw == nil {
			continue
		}
		c.sources[s.Key] = l.name(s.Key)
		if s.Key == "ingress" {
			named := make(map[string]Ingress)
			for _, in := range c.Ingress {
				named[in.Topic] = in
			}
			list, fs := decodeIngress(raw, named)
			for i := range fs {
				fs[i].Source = l.name(s.Key)
			}
			c.Ingress, faults = list, append(faults, fs...)
			continue
		}
		if err := set(fields[s.Key], raw); err != nil {
			faults = append(faults, Fault{Key: s.Key, Source: l.name(s.Key), Problem: err.Error()})
		}
	}
	return faults
}

// readFile reads a YAML file and finds the keys in it that are no settings.
func readFile(path string) (layer, []Fault) {
	name := "file " + path
	l := layer{name: func(string) string { return name }, values: koanf.New(".")}
	if err := l.values.Load(file.Provider(path), yaml.Parser()); err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return l, []Fault{{Source: name, Problem: err.Error()}}
	}
	var faults []Fault
	for _, key := range l.values.Keys() {
		value := l.values.Get(key)
		if section, ok := value.(map[string]any); ok && len(section) == 0 {
			value = nil
		}
		switch {
		case isSetting(key), inSetting(key):
		case isSection(key) && value == nil:
		case isSection(key):
			faults = append(faults, Fault{Key: key, Source: name, Problem: "is a section; it has no value of its own"})
		default:
			faults = append(faults, Fault{Key: key, Source: name, Problem: unknown(key, keys())})
		}
	}
	return l, faults
}

// kubernetesVariable matches what Kubernetes adds to the environment of every pod for a service whose
// name begins with bide: these are nobody's settings.
var kubernetesVariable = regexp.MustCompile(`^BIDE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// readEnv reads the BIDE_ variables and finds those that are no settings. An empty one counts as not
// set: charts and compose files leave such behind.
func readEnv(environ []string) (layer, []Fault) {
	byName := map[string]string{envOf(ConfigKey): ConfigKey}
	for _, s := range settings {
		byName[s.Env()] = s.Key
	}
	var faults []Fault
	l := layer{name: envOf, values: koanf.New(".")}
	provider := env.Provider(".", env.Opt{
		Prefix:      "BIDE_",
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			key, ok := byName[name]
			switch {
			case !ok && !kubernetesVariable.MatchString(name) && !(watchdog.FaultsBuiltIn && name == "BIDE_FAULT"):
				faults = append(faults, Fault{Source: name, Problem: unknown(name, slices.Collect(maps.Keys(byName)))})
				return "", nil
			case !ok || value == "":
				return "", nil
			}
			return key, value
		},
	})
	if err := l.values.Load(provider, nil); err != nil {
		faults = append(faults, Fault{Source: "environment", Problem: err.Error()})
	}
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Source, b.Source) })
	return l, faults
}

// readFlags reads the flags that were given.
func readFlags(flags *pflag.FlagSet) layer {
	l := layer{name: func(key string) string { return "--" + key }, values: koanf.New(".")}
	flags.Visit(func(f *pflag.Flag) {
		if isSetting(f.Name) || f.Name == ConfigKey {
			_ = l.values.Set(f.Name, f.Value.String()) // fails only in strict merge, which this is not
		}
	})
	return l
}

func keys() []string {
	out := make([]string, 0, len(settings))
	for _, s := range settings {
		out = append(out, s.Key)
	}
	return out
}

func isSetting(key string) bool {
	return slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == key })
}

// inSetting says whether key lies in a setting whose value is a section.
func inSetting(key string) bool {
	return slices.ContainsFunc(settings, func(s Setting) bool { return s.Section && strings.HasPrefix(key, s.Key+".") })
}

func isSection(key string) bool {
	return slices.ContainsFunc(settings, func(s Setting) bool { return strings.HasPrefix(s.Key, key+".") })
}

// unknown says that name is no setting, and which it may have been meant to be.
func unknown(name string, known []string) string {
	if meant := nearest(name, known); meant != "" {
		return fmt.Sprintf("is no setting; did you mean %s?", meant)
	}
	return "is no setting; see: sidecar config"
}

// UnknownFlag says what is wrong with a flag that is not among those known: a secret, or none at all.
func UnknownFlag(name string, known []string) string {
	for _, s := range settings {
		if s.Key == name && s.Secret {
			return fmt.Sprintf("--%s is no flag, for a command line can be read by everybody: set %s-file or %s", name, name, s.Env())
		}
	}
	if meant := nearest(name, known); meant != "" {
		return fmt.Sprintf("unknown flag --%s; did you mean --%s?", name, meant)
	}
	return "unknown flag --" + name
}

// nearest returns the name among known that is most like name, whatever the case of its letters, or that
// begins with it; empty where none is near.
func nearest(name string, known []string) string {
	best, distance := "", len(name)/3+1
	for _, k := range slices.Sorted(slices.Values(known)) {
		d := editDistance(strings.ToLower(name), strings.ToLower(k))
		if strings.HasPrefix(k, name) {
			d = min(d, len(name)/3)
		}
		if d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance returns how many letters must be put in, left out or changed to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
