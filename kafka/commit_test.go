package kafka

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"

	"github.com/bide-mq/bide"
)

var commitSeed = flag.Uint64("commit-seed", 0, "seed of the random commits; 0 takes one from the clock")

func exampleCommit() bide.Commit {
	return bide.Commit{
		Next: 1234, Low: 1000, Cursor: bide.Position{DueMs: sentMs, Offset: 1230},
		Rules:   []bide.RuleSpan{{From: 0}, {From: 1100, Rules: bide.Rules{Delay: 5 * time.Minute, MaxDelay: 24 * time.Hour}}},
		Writer:  bide.Writer{Instance: "bide-0", Incarnation: 0x1f, Plan: 7},
		TopicID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255},
		Lanes:   12,
	}
}

// TestCommitsAreReadAsTheyWereWritten holds the format: what is in testdata was written by a release, and
// every later one of the same version reads it the same way. Do not rewrite a line there; a new format
// is a new version.
func TestCommitsAreReadAsTheyWereWritten(t *testing.T) {
	datadriven.Walk(t, "testdata/commit", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var next int64
			d.ScanArgs(t, "next", &next)
			meta := strings.TrimSuffix(d.Input, "\n")
			c, prefix, err := decodeCommit(next, meta)
			if err != nil {
				return describeCommitError(err)
			}
			again, err := encodeCommit(c, prefix)
			if err != nil || again != meta {
				t.Errorf("written again as %q, %v", again, err)
			}
			return fmt.Sprintf("next %d cursor %v low %d\nwriter %q %016x plan %d, transactional ids %q\ntopic %x, %d lanes\nrules %v\n",
				c.Next, c.Cursor, c.Low, c.Writer.Instance, c.Writer.Incarnation, c.Writer.Plan, prefix, c.TopicID, c.Lanes, c.Rules)
		})
	})
}

func describeCommitError(err error) string {
	switch {
	case errors.Is(err, bide.ErrForeignCommit):
		return "foreign: " + err.Error() + "\n"
	case errors.Is(err, bide.ErrCommitVersion):
		return "version: " + err.Error() + "\n"
	}
	return "neither foreign nor of another version: " + err.Error() + "\n"
}

func TestACommitIsOneLineThatAHumanCanRead(t *testing.T) {
	meta, err := encodeCommit(exampleCommit(), "bide.delay.bide-0")
	const want = "bide/1 c=1767323045678/1230 l=1000 w=bide-0:000000000000001f:7 x=bide.delay.bide-0 t=AAECAwQFBgcICQoLDA0O_w n=12 r=0:0:0,1100:300000:86400000"
	if err != nil || meta != want {
		t.Errorf("%v\n%s, expected\n%s", err, meta, want)
	}
}

func TestRandomCommitsSurviveTheWayThroughKafka(t *testing.T) {
	seed := *commitSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-commit-seed=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		c, prefix := randomCommit(r)
		meta, err := encodeCommit(c, prefix)
		if errors.Is(err, ErrCommitTooLarge) {
			continue
		}
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if len(meta) > maxCommitBytes || !utf8.ValidString(meta) || strings.ContainsAny(meta, "\n\t\x00") {
			t.Fatalf("%q", meta)
		}
		got, gotPrefix, err := decodeCommit(c.Next, meta)
		if err != nil || gotPrefix != prefix || !reflect.DeepEqual(got, c) {
			t.Fatalf("%v\n%s\n%+v %q, expected\n%+v %q", err, meta, got, gotPrefix, c, prefix)
		}
	}
}

func randomCommit(r *rand.Rand) (c bide.Commit, prefix string) {
	upTo := func(most int64) int64 { // any size of number
		return r.Int64N(most) >> r.IntN(63)
	}
	anything := func(most int) string {
		b := make([]byte, r.IntN(most))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	c = bide.Commit{
		Next:    upTo(math.MaxInt64) + 1,
		Cursor:  bide.NoPosition,
		Writer:  bide.Writer{Instance: "i" + anything(60), Incarnation: r.Uint64(), Plan: r.Uint64()},
		TopicID: [16]byte([]byte(fmt.Sprintf("%016x", r.Uint64()))),
		Lanes:   int32(upTo(math.MaxInt32)) + 1,
	}
	c.Low = r.Int64N(c.Next) + r.Int64N(2)
	if r.IntN(4) > 0 {
		c.Cursor = bide.Position{DueMs: upTo(maxDueMs + 1), Offset: r.Int64N(c.Next)}
	}
	from := upTo(1 << 40)
	for range r.IntN(12) {
		c.Rules = append(c.Rules, bide.RuleSpan{From: from, Rules: bide.Rules{
			Delay:    time.Duration(upTo(math.MaxInt64)).Truncate(time.Millisecond),
			MaxDelay: time.Duration(upTo(math.MaxInt64)).Truncate(time.Millisecond),
		}})
		from += 1 + upTo(1<<40)
	}
	return c, anything(80)
}

func TestACommitThatDoesNotFitNamesTheSettings(t *testing.T) {
	c := exampleCommit()
	for from := int64(2000); len(c.Rules) < 100; from++ {
		c.Rules = append(c.Rules, bide.RuleSpan{From: from, Rules: bide.Rules{Delay: time.Minute}})
	}
	_, err := encodeCommit(c, "p")
	if !errors.Is(err, ErrCommitTooLarge) || !strings.Contains(err.Error(), "100 settings of delay and max-delay") {
		t.Errorf("%v", err)
	}
	c.Rules = c.Rules[:40]
	if _, err := encodeCommit(c, "p"); err != nil {
		t.Errorf("40 settings: %v", err)
	}
	c = exampleCommit()
	c.Writer.Instance = strings.Repeat("é", 200)
	if _, err := encodeCommit(c, ""); !errors.Is(err, ErrCommitTooLarge) {
		t.Errorf("long instance id: %v", err)
	}
}

func TestACommitThatMakesNoSenseIsNotWritten(t *testing.T) {
	for name, spoil := range map[string]func(*bide.Commit){
		"next":             func(c *bide.Commit) { c.Next, c.Low, c.Cursor = -1, 0, bide.NoPosition },
		"low":              func(c *bide.Commit) { c.Low = -1 },
		"low over next":    func(c *bide.Commit) { c.Low = c.Next + 1 },
		"cursor at next":   func(c *bide.Commit) { c.Cursor.Offset = c.Next },
		"cursor's due":     func(c *bide.Commit) { c.Cursor.DueMs = maxDueMs + 1 },
		"half a cursor":    func(c *bide.Commit) { c.Cursor.Offset = -1 },
		"last position":    func(c *bide.Commit) { c.Cursor = bide.LastPosition(5) },
		"no instance":      func(c *bide.Commit) { c.Writer.Instance = "" },
		"no lanes":         func(c *bide.Commit) { c.Lanes = 0 },
		"settings twice":   func(c *bide.Commit) { c.Rules[1].From = 0 },
		"settings before":  func(c *bide.Commit) { c.Rules[0].From = -1 },
		"negative delay":   func(c *bide.Commit) { c.Rules[1].Rules.Delay = -time.Second },
		"delay in between": func(c *bide.Commit) { c.Rules[1].Rules.Delay = time.Second + 1 },
		"max-delay":        func(c *bide.Commit) { c.Rules[1].Rules.MaxDelay = time.Microsecond },
	} {
		c := exampleCommit()
		spoil(&c)
		if meta, err := encodeCommit(c, "p"); err == nil || errors.Is(err, ErrCommitTooLarge) {
			t.Errorf("%s: %q, %v", name, meta, err)
		}
	}
}

func TestACommitThatIsNotOursIsQuotedInBounds(t *testing.T) {
	for _, meta := range []string{strings.Repeat("x", 4096), "\x00\xff\n", "bide/1 " + strings.Repeat("c=", 2000)} {
		_, _, err := decodeCommit(5, meta)
		if !errors.Is(err, bide.ErrForeignCommit) || len(err.Error()) > 400 || !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%v", err)
		}
	}
}

// FuzzDecodeCommit says that what can be read is exactly what would be written, and everything else is
// one of the two errors.
func FuzzDecodeCommit(f *testing.F) {
	whole, err := encodeCommit(exampleCommit(), "bide.delay.bide-0")
	if err != nil {
		f.Fatal(err)
	}
	c := bide.Commit{Cursor: bide.NoPosition, Writer: bide.Writer{Instance: "a b%"}, Lanes: 1}
	first, err := encodeCommit(c, "")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "bide/2 c=-", "bide/", "x", whole, first, whole + " ", whole[:40]} {
		f.Add(int64(1234), s)
	}
	f.Fuzz(func(t *testing.T, next int64, meta string) {
		c, prefix, err := decodeCommit(next, meta)
		if err != nil {
			if !errors.Is(err, bide.ErrForeignCommit) && !errors.Is(err, bide.ErrCommitVersion) {
				t.Fatal(err)
			}
			return
		}
		if c.Next != next || c.Low < 0 || c.Low > next || c.Cursor.Offset >= next || c.Cursor.DueMs > maxDueMs {
			t.Fatalf("%+v", c)
		}
		if again, err := encodeCommit(c, prefix); err != nil || again != meta {
			t.Fatalf("%q, %v", again, err)
		}
	})
}
