package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// AddFlags adds --config and a flag for every setting that is no secret. The help shows the defaults that
// base has, which is what [Load] is given.
func AddFlags(flags *pflag.FlagSet, base Config) {
	flags.String(ConfigKey, "", "YAML file with settings ($"+envOf(ConfigKey)+")")
	fields := leaves(reflect.ValueOf(&base).Elem(), "")
	for _, s := range settings {
		if s.Secret {
			continue
		}
		v := &flagValue{text: Text(&base, s.Key), kind: kindOfFlag(fields[s.Key])}
		if s.Choices != nil {
			v.kind = strings.Join(s.Choices, "|")
		}
		flag := flags.VarPF(v, s.Key, "", s.Doc+" ($"+s.Env()+")")
		if v.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// flagValue keeps the text of a flag: it is read, and judged, together with all else. A list may be
// given several times.
type flagValue struct {
	text, kind string
	given      bool
}

func (v *flagValue) String() string { return v.text }

func (v *flagValue) Type() string { return v.kind }

func (v *flagValue) Set(text string) error {
	if v.kind == "list" && v.given {
		text = v.text + "," + text
	}
	v.text, v.given = text, true
	return nil
}

// kindOfFlag is the word for a value in the help.
func kindOfFlag(field reflect.Value) string {
	switch field.Interface().(type) {
	case time.Duration:
		return "duration"
	case Bytes:
		return "size"
	case bool:
		return "bool"
	}
	switch field.Kind() {
	case reflect.Slice, reflect.Map:
		return "list"
	case reflect.String:
		return "string"
	default:
		return "int"
	}
}
