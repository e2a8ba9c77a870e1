package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Bytes is a size. Its text is a number with an optional unit: B, KB, MB, GB, TB (powers of 1000) or
// KiB, MiB, GiB, TiB (powers of 1024).
type Bytes int64

// byteUnits are in the order in which String tries them.
var byteUnits = []struct {
	name string
	size Bytes
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
}

// String returns the size with the greatest binary unit that divides it, or as a plain number.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && b%u.size == 0 {
			return fmt.Sprintf("%d%s", b/u.size, u.name)
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// ParseBytes reads the text form of [Bytes].
func ParseBytes(s string) (Bytes, error) {
	number, unit := s, Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a size; write a whole number of bytes, or one with a unit like 64MiB", s)
	case n < 0:
		return 0, fmt.Errorf("%q is negative", s)
	case n > math.MaxInt64/int64(unit):
		return 0, fmt.Errorf("%q is too large", s)
	}
	return Bytes(n) * unit, nil
}

// ParseDuration reads what time.ParseDuration does, with days before it: 30d, 49d18h, 90s.
func ParseDuration(s string) (time.Duration, error) {
	fault := fmt.Errorf("%q is not a duration; write one with a unit like 500ms, 90s, 1h30m or 49d18h", s)
	rest := s
	var total time.Duration
	if days, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil {
			return 0, fault
		}
		if n > math.MaxInt64/uint64(24*time.Hour) {
			return 0, fmt.Errorf("%q is too long: a duration is at most 292 years", s)
		}
		total, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return total, nil
		}
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return 0, fault
	case d < 0:
		return 0, fmt.Errorf("%q is negative", s)
	case d > math.MaxInt64-total:
		return 0, fmt.Errorf("%q is too long: a duration is at most 292 years", s)
	}
	return total + d, nil
}

// FormatDuration returns d as [ParseDuration] reads it, without zero parts.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	days := d / (24 * time.Hour)
	rest := (d % (24 * time.Hour)).String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	switch {
	case days == 0:
		return rest
	case d%(24*time.Hour) == 0:
		return fmt.Sprintf("%dd", days)
	default:
		return fmt.Sprintf("%dd%s", days, rest)
	}
}

// leaves returns the fields of a struct that are settings, by key; structs in it are sections, and
// those tagged squash are part of the section that they stand in.
func leaves(v reflect.Value, prefix string) map[string]reflect.Value {
	out := make(map[string]reflect.Value)
	for i := range v.NumField() {
		name, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("koanf"), ",")
		field := v.Field(i)
		switch {
		case option == "squash":
			maps.Copy(out, leaves(field, prefix))
		case name == "" || name == "-":
		case field.Kind() == reflect.Struct:
			maps.Copy(out, leaves(field, prefix+name+"."))
		default:
			out[prefix+name] = field
		}
	}
	return out
}

// set writes raw, text or what YAML made of it, to a field.
func set(field reflect.Value, raw any) error {
	switch p := field.Addr().Interface().(type) {
	case *time.Duration:
		return setDuration(p, raw)
	case *Bytes:
		n, err := ParseBytes(fmt.Sprint(raw))
		if err == nil {
			*p = n
		}
		return err
	case *[]string:
		return setList(p, raw)
	case *map[string]string:
		return setMap(p, raw)
	}
	switch field.Kind() {
	case reflect.String:
		switch raw.(type) {
		case string, int, bool, float64:
			field.SetString(fmt.Sprint(raw))
			return nil
		}
		return fmt.Errorf("%s is not text", kindOf(raw))
	case reflect.Bool:
		b, err := strconv.ParseBool(fmt.Sprint(raw))
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", fmt.Sprint(raw))
		}
		field.SetBool(b)
		return nil
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(fmt.Sprint(raw), 10, field.Type().Bits())
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%v is out of range", raw)
		}
		if err != nil {
			return fmt.Errorf("%q is not a whole number", fmt.Sprint(raw))
		}
		field.SetInt(n)
		return nil
	}
	return fmt.Errorf("cannot be set to a %s", kindOf(raw))
}

func setDuration(p *time.Duration, raw any) error {
	text, isText := raw.(string)
	if n, ok := raw.(int); ok {
		text = strconv.Itoa(n)
	} else if !isText {
		return fmt.Errorf("%s is not a duration; write one with a unit like 90s", kindOf(raw))
	}
	if _, err := strconv.ParseInt(text, 10, 64); err == nil && text != "0" {
		return fmt.Errorf("%q has no unit; write %[1]ss for seconds or %[1]sms for milliseconds", text)
	}
	d, err := ParseDuration(text)
	if err == nil {
		*p = d
	}
	return err
}

func setList(p *[]string, raw any) error {
	var out []string
	switch raw := raw.(type) {
	case string:
		for item := range strings.SplitSeq(raw, ",") {
			out = append(out, strings.TrimSpace(item))
		}
	case []any:
		for _, item := range raw {
			switch item.(type) {
			case string, int:
				out = append(out, fmt.Sprint(item))
			default:
				return fmt.Errorf("%s in a list of names", kindOf(item))
			}
		}
	case []string:
		out = raw
	default:
		return fmt.Errorf("%s is not a list", kindOf(raw))
	}
	*p = slices.DeleteFunc(out, func(s string) bool { return s == "" })
	return nil
}

// setMap takes a section, or text like a=1,b=2.
func setMap(p *map[string]string, raw any) error {
	out := make(map[string]string)
	switch raw := raw.(type) {
	case map[string]any:
		for name, value := range raw {
			switch value.(type) {
			case string, int, bool, float64:
				out[name] = fmt.Sprint(value)
			default:
				return fmt.Errorf("%s: %s is not text", name, kindOf(value))
			}
		}
	case string:
		for pair := range strings.SplitSeq(raw, ",") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				return errors.New("is not name=value with commas between")
			}
			out[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	default:
		return fmt.Errorf("%s is not a section", kindOf(raw))
	}
	*p = out
	return nil
}

// kindOf names what YAML made of a value, for an error.
func kindOf(raw any) string {
	switch raw.(type) {
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	case nil:
		return "nothing"
	default:
		return strconv.Quote(fmt.Sprint(raw))
	}
}

// decodeIngress reads the list of ingress topics. Its text form is a list of names with commas, or the
// YAML of the list; named has the settings of topics that raw may ask for by name alone.
func decodeIngress(raw any, named map[string]Ingress) ([]Ingress, []Fault) {
	if text, ok := raw.(string); ok {
		if !strings.HasPrefix(strings.TrimSpace(text), "[") {
			var names []string
			_ = setList(&names, text)
			raw = names
		} else if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
			return nil, []Fault{{Key: "ingress", Problem: fmt.Sprintf("is not a YAML list: %v", err)}}
		}
	}
	var items []any
	switch raw := raw.(type) {
	case []any:
		items = raw
	case []string:
		for _, name := range raw {
			items = append(items, name)
		}
	default:
		return nil, []Fault{{Key: "ingress", Problem: kindOf(raw) + " is not a list of topics"}}
	}
	var out []Ingress
	var faults []Fault
	for i, item := range items {
		key := fmt.Sprintf("ingress[%d]", i)
		switch item := item.(type) {
		case map[string]any:
			in, fs := decodeSection(key, item)
			out, faults = append(out, in), append(faults, fs...)
		case string, int:
			name := strings.TrimSpace(fmt.Sprint(item))
			in, ok := named[name]
			if !ok {
				in = Ingress{Topic: name}
			}
			out = append(out, in)
		default:
			faults = append(faults, Fault{Key: key, Problem: kindOf(item) + " is neither a topic nor a section"})
		}
	}
	return out, faults
}

func decodeSection(key string, section map[string]any) (in Ingress, faults []Fault) {
	fields := leaves(reflect.ValueOf(&in).Elem(), "")
	for _, name := range slices.Sorted(maps.Keys(section)) {
		field, ok := fields[name]
		switch {
		case !ok:
			faults = append(faults, Fault{Key: key + "." + name, Problem: unknown(name, slices.Collect(maps.Keys(fields)))})
		case section[name] == nil:
		default:
			if err := set(field, section[name]); err != nil {
				faults = append(faults, Fault{Key: key + "." + name, Problem: err.Error()})
			}
		}
	}
	return in, faults
}
