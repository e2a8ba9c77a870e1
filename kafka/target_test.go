package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/bide-mq/bide"
)

func judge(t *testing.T, c *Contract, ingress string, pairs ...string) *bide.Rejection {
	t.Helper()
	m := bide.Message{Record: sent(pairs...)}
	r := c.Judge(bide.Lane{Topic: ingress, Partition: 2}, &m)
	if r != nil {
		checkReason(t, r)
	}
	return r
}

func TestTargetsAreJudged(t *testing.T) {
	ingresses := []Ingress{
		{Topic: "delay-ingress"},
		{Topic: "orders.retry.5m", Target: "orders", Delay: 5 * time.Minute},
	}
	free := newTestContract(t, ContractOptions{Ingresses: ingresses})
	listed := newTestContract(t, ContractOptions{Ingresses: ingresses, Allow: []string{"billing", "mail.*"}})
	star := newTestContract(t, ContractOptions{Ingresses: ingresses, Allow: []string{"billing", "*"}})
	for _, tt := range []struct {
		name    string
		c       *Contract
		ingress string
		headers []string
		code    string
	}{
		{"named", free, "delay-ingress", []string{HeaderTo, "billing"}, ""},
		{"none", free, "delay-ingress", nil, CodeNoTarget},
		{"none, on a topic that is no ingress", free, "elsewhere", nil, CodeNoTarget},
		{"configured", free, "orders.retry.5m", nil, ""},
		{"named instead of the configured one", free, "orders.retry.5m", []string{HeaderTo, "billing"}, ""},
		{"the last one wins", free, "delay-ingress", []string{HeaderTo, "__x", HeaderTo, "billing"}, ""},
		{"the last one loses", free, "delay-ingress", []string{HeaderTo, "billing", HeaderTo, "__x"}, CodeTargetInternal},
		{"ingress", free, "delay-ingress", []string{HeaderTo, "delay-ingress"}, CodeTargetIsIngress},
		{"other ingress", free, "delay-ingress", []string{HeaderTo, "orders.retry.5m"}, CodeTargetIsIngress},
		{"offsets topic", free, "delay-ingress", []string{HeaderTo, "__consumer_offsets"}, CodeTargetInternal},
		{"dead-letter topic", free, "delay-ingress", []string{HeaderTo, DefaultDeadLetterTopic}, ""},
		{"empty", free, "orders.retry.5m", []string{HeaderTo, ""}, CodeTargetInvalid},
		{"dot", free, "delay-ingress", []string{HeaderTo, "."}, CodeTargetInvalid},
		{"two dots", free, "delay-ingress", []string{HeaderTo, ".."}, CodeTargetInvalid},
		{"three dots", free, "delay-ingress", []string{HeaderTo, "..."}, ""},
		{"slash", free, "delay-ingress", []string{HeaderTo, "a/b"}, CodeTargetInvalid},
		{"space", free, "delay-ingress", []string{HeaderTo, "a b"}, CodeTargetInvalid},
		{"line end", free, "delay-ingress", []string{HeaderTo, "a\n"}, CodeTargetInvalid},
		{"wildcard", free, "delay-ingress", []string{HeaderTo, "orders*"}, CodeTargetInvalid},
		{"umlaut", free, "delay-ingress", []string{HeaderTo, "aufträge"}, CodeTargetInvalid},
		{"binary", free, "delay-ingress", []string{HeaderTo, "\x00\xff"}, CodeTargetInvalid},
		{"249 bytes", free, "delay-ingress", []string{HeaderTo, strings.Repeat("a", 249)}, ""},
		{"250 bytes", free, "delay-ingress", []string{HeaderTo, strings.Repeat("a", 250)}, CodeTargetInvalid},
		{"listed", listed, "delay-ingress", []string{HeaderTo, "billing"}, ""},
		{"listed by prefix", listed, "delay-ingress", []string{HeaderTo, "mail.out"}, ""},
		{"prefix alone", listed, "delay-ingress", []string{HeaderTo, "mail."}, ""},
		{"not listed", listed, "delay-ingress", []string{HeaderTo, "billing2"}, CodeTargetNotAllowed},
		{"configured elsewhere", listed, "delay-ingress", []string{HeaderTo, "orders"}, ""},
		{"configured and not listed", listed, "orders.retry.5m", nil, ""},
		{"dead-letter topic, not listed", listed, "delay-ingress", []string{HeaderTo, DefaultDeadLetterTopic}, CodeTargetNotAllowed},
		{"star", star, "delay-ingress", []string{HeaderTo, "whatever"}, ""},
		{"star and internal", star, "delay-ingress", []string{HeaderTo, "__transaction_state"}, CodeTargetInternal},
		{"star and ingress", star, "delay-ingress", []string{HeaderTo, "delay-ingress"}, CodeTargetIsIngress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := judge(t, tt.c, tt.ingress, tt.headers...)
			if tt.code != "" {
				checkRejection(t, r, tt.code)
			} else if r != nil {
				t.Fatal(r)
			}
		})
	}
}

func TestNewContractNamesEveryFault(t *testing.T) {
	_, err := NewContract(ContractOptions{
		Ingresses: []Ingress{
			{Topic: "a", Target: "b"},
			{Topic: "b", Delay: -time.Second},
			{Topic: "b", MaxDelay: time.Microsecond},
			{Topic: "c d", Target: "__x"},
			{Topic: "__y", Target: "e f"},
			{Topic: "g", Delay: time.Hour, MaxDelay: time.Minute},
			{Topic: "dead"},
		},
		DeadLetterTopic: "dead",
		Allow:           []string{"", "x*y", "a", "__z", "fine", "fine.*"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, says := range []string{
		`ingress "a": target "b" is an ingress`,
		`ingress "b" is listed twice`,
		`ingress "b": delay -1s`,
		`ingress "b": max-delay 1µs`,
		`ingress "c d" is no topic name`,
		`ingress "c d": target "__x" is an internal topic`,
		`ingress "__y" is no topic name`,
		`ingress "__y": target "e f" is no topic name`,
		`ingress "g": delay 1h0m0s is beyond max-delay 1m0s`,
		`dead-letter topic "dead" is an ingress`,
		`allowed target "" is neither`,
		`allowed target "x*y" is neither`,
		`target "a" is an ingress`,
		`target "__z" is an internal topic`,
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("does not say %s", says)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 14 {
		t.Errorf("%d faults:\n%v", n, err)
	}
	if _, err := NewContract(ContractOptions{}); err == nil || !strings.Contains(err.Error(), "no ingress") {
		t.Errorf("no ingress: %v", err)
	}
	if _, err := NewContract(ContractOptions{Ingresses: []Ingress{{Topic: "a"}}, DeadLetterTopic: "__d"}); err == nil {
		t.Error("internal dead-letter topic accepted")
	}
}

func TestRulesAreThoseOfTheIngress(t *testing.T) {
	c := newTestContract(t, ContractOptions{Ingresses: []Ingress{{Topic: "a", Delay: time.Second, MaxDelay: time.Hour}}})
	if got := c.Rules("a"); got != (bide.Rules{Delay: time.Second, MaxDelay: time.Hour}) {
		t.Errorf("a: %+v", got)
	}
	if got := c.Rules("b"); got != (bide.Rules{}) {
		t.Errorf("b: %+v", got)
	}
}
