package wheel

import (
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDelaysFireInTheirTickAtEveryHandPosition prevents errors by one: a delay of one tick, of n
// ticks, of exactly one turn or several, or one beside it, that is early, a turn late or a panic at
// some position of the hand.
func TestDelaysFireInTheirTickAtEveryHandPosition(t *testing.T) {
	delays := []Tick{0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 192, 4095, 4096, 4097, 8192, 12288, 262143, 262144, 262145, 524288}
	var starts []Tick
	for hand := range Tick(64) {
		starts = append(starts, hand, 64*hand+hand, 4096*hand+63, 262144*hand+4095, -hand)
	}
	for _, start := range starts {
		for _, delay := range delays {
			w := New[Tick](start)
			w.Add(start+delay, delay)
			if delay > 0 {
				if out, _ := w.Advance(start+delay-1, 0, nil); len(out) != 0 {
					t.Fatalf("at %d, delay %d: early", start, delay)
				}
			}
			if out, _ := w.Advance(start+delay, 0, nil); !slices.Equal(out, []Tick{delay}) {
				t.Fatalf("at %d, delay %d: delivered %v in its tick", start, delay, out)
			}
		}
	}
}

// TestATickAtATimeNothingIsMissed drives the clock tick by tick over several turns, with a timer in
// each: what a ticker does.
func TestATickAtATimeNothingIsMissed(t *testing.T) {
	w := New[Tick](0)
	const n = 3 * 4096
	for at := range Tick(n) {
		w.Add(at, at)
	}
	for now := range Tick(n) {
		if out, _ := w.Advance(now, 0, nil); !slices.Equal(out, []Tick{now}) {
			t.Fatalf("tick %d delivered %v", now, out)
		}
	}
}

// TestSkippedTicksAreCaughtUp prevents timers in ticks that nobody polled from waiting a turn, or
// from delaying all that come after.
func TestSkippedTicksAreCaughtUp(t *testing.T) {
	for _, step := range []Tick{7, 63, 64, 65, 1000, 4096, 5000, 300_000} {
		w := New[Tick](0)
		for at := Tick(0); at < 300_000; at += 11 {
			w.Add(at, at)
		}
		want := Tick(0)
		for now := Tick(0); w.Len() > 0; now += step {
			out, _ := w.Advance(now, 0, nil)
			for _, at := range out {
				if at != want || at > now || now-at >= step {
					t.Fatalf("step %d: delivered %d at %d, want %d", step, at, now, want)
				}
				want += 11
			}
		}
	}
}

// TestPeriodsThatAreNoMultipleOfATurnKeepTheirBeat prevents a period of 70 on a wheel of 64 from
// firing each turn, or each tick; re-added from what Advance delivered, as a periodic timer is.
func TestPeriodsThatAreNoMultipleOfATurnKeepTheirBeat(t *testing.T) {
	for _, period := range []Tick{1, 63, 64, 65, 70, 100, 4095, 4096, 4097, 10_007} {
		w := New[Tick](5)
		w.Add(5+period, period)
		for beat := Tick(1); beat <= 300; beat++ {
			at := 5 + beat*period
			early, _ := w.Advance(at-1, 0, nil)
			out, _ := w.Advance(at, 0, nil)
			if len(early) != 0 || len(out) != 1 {
				t.Fatalf("period %d, beat %d: %d early, %d in time", period, beat, len(early), len(out))
			}
			w.Add(at+period, period)
		}
	}
}

// TestTimersReaddedWhileTheirBucketIsEmptiedFireOnce prevents an insertion into the bucket that is
// being processed from firing early, looping for ever, or waiting for a turn.
func TestTimersReaddedWhileTheirBucketIsEmptiedFireOnce(t *testing.T) {
	for _, again := range []Tick{0, 1, 63, 64, 65, 4096} {
		for _, at := range []Tick{10, 64, 70, 4096, 5000} {
			w := New[int](0)
			for i := range 10 {
				w.Add(at, i)
			}
			var out, batch []int
			for more := true; more; {
				batch, more = w.Advance(at, 1, batch[:0])
				for _, v := range batch {
					if v < 10 {
						w.Add(at+again, v+10)
					}
				}
				out = append(out, batch...)
			}
			rest, _ := w.Advance(at+again, 0, nil)
			out = append(out, rest...)
			for i := range 20 {
				if len(out) != 20 || out[i] != i {
					t.Fatalf("at %d, again after %d: %v", at, again, out)
				}
			}
		}
	}
}

// TestACancelledTimerNeverFires prevents a Cancel directly behind its Add that is overtaken by it,
// at any distance.
func TestACancelledTimerNeverFires(t *testing.T) {
	w := New[int](0)
	for shift := range 63 {
		id := w.Add(1<<shift, shift)
		if v, ok := w.Cancel(id); !ok || v != shift {
			t.Fatalf("Cancel = %d, %v", v, ok)
		}
		if _, ok := w.Cancel(id); ok {
			t.Fatal("cancelled twice")
		}
	}
	if out, _ := w.Advance(math.MaxInt64, 0, nil); len(out) != 0 {
		t.Fatalf("fired %v", out)
	}
	if _, ok := w.Cancel(ID{}); ok {
		t.Error("the zero ID names a timer")
	}
	if w.Reset(ID{index: 1 << 31, generation: 1}, 5) {
		t.Error("an ID of nowhere names a timer")
	}
}

// TestLateCancelTouchesNoOtherTimer prevents Cancel and Reset with the ID of a timer that is gone
// from panicking or hitting the timer that has its memory now.
func TestLateCancelTouchesNoOtherTimer(t *testing.T) {
	w := New[int](0)
	var dead []ID
	for round := range Tick(2000) {
		id := w.Add(round, int(round))
		if out, _ := w.Advance(round, 0, nil); len(out) != 1 {
			t.Fatalf("round %d: fired %v", round, out)
		}
		dead = append(dead, id)
		other := w.Add(round+1, -1)
		for _, old := range dead[max(0, len(dead)-50):] {
			if _, ok := w.Cancel(old); ok || w.Reset(old, 0) {
				t.Fatalf("the ID of a timer that fired still names one: %v", old)
			}
		}
		if _, ok := w.Cancel(other); !ok {
			t.Fatal("the other timer is gone")
		}
	}
}

// TestATimerThatIsResetOftenFiresOnce prevents a moved timer from firing twice, at an old time, or
// from leaving an entry behind by which a later Cancel misses: within its slot, to other wheels,
// and back.
func TestATimerThatIsResetOftenFiresOnce(t *testing.T) {
	rnd := newRand(t)
	w := New[int](0)
	at, ids := make([]Tick, 100), make([]ID, 100)
	for i := range ids {
		ids[i] = w.Add(50, i)
	}
	now, fired := Tick(0), 0
	for fired < 100 {
		for range 200 {
			i := rnd.IntN(100)
			if to := now + 1 + anyDelay(rnd); w.Reset(ids[i], to) {
				at[i] = to
			}
		}
		now += Tick(rnd.IntN(40))
		out, _ := w.Advance(now, 0, nil)
		for _, i := range out {
			if at[i] > now || w.Reset(ids[i], now+5) {
				t.Fatalf("timer %d, due %d, fired at %d and can be reset", i, at[i], now)
			}
			fired++
		}
		inspect(t, w)
	}
	if out, _ := w.Advance(math.MaxInt64, 0, nil); len(out) != 0 {
		t.Fatalf("fired again: %v", out)
	}
}

// anyDelay returns a delay of any size up to 2³⁰ ticks, small ones as often as large ones; 0 too.
func anyDelay(rnd *rand.Rand) Tick { return Tick(rnd.Int64N(1 << rnd.IntN(31))) }

// TestAChainOfTimersNeverBreaks prevents a wheel in which each timer adds the next from stopping
// after a while, in the first tick as well as years on.
func TestAChainOfTimersNeverBreaks(t *testing.T) {
	rnd := newRand(t)
	w := New[int](0)
	w.Add(1, 0)
	for link := range 300_000 {
		next, ok := w.Next()
		if !ok {
			t.Fatalf("the chain broke at link %d", link)
		}
		out, _ := w.Advance(next, 0, nil)
		for range out {
			w.Add(w.Now()+anyDelay(rnd), link)
		}
	}
}

// TestAddsDoNotStarveExpiry prevents a stream of adds, each of which moves the next expiry, from
// keeping what is due waiting.
func TestAddsDoNotStarveExpiry(t *testing.T) {
	w := New[Tick](0)
	fired := 0
	for now := range Tick(10_000) {
		for i := range Tick(10) {
			w.Add(now+1+i*i*i*50, now+1+i*i*i*50)
		}
		for more := true; more; {
			var out []Tick
			out, more = w.Advance(now, 16, nil)
			for _, at := range out {
				if at != now {
					t.Fatalf("due %d, fired %d", at, now)
				}
			}
			fired += len(out)
			w.Add(now+20_000, now+20_000)
		}
	}
	if fired != 48_744 { // those of the first 10,000 ticks
		t.Fatalf("fired %d", fired)
	}
}

// TestLongTimersCascadeAtMostOncePerWheel bounds the work of a timer's life: it never climbs, and
// re-insertion ends.
func TestLongTimersCascadeAtMostOncePerWheel(t *testing.T) {
	w := New[int](0)
	for shift := range 63 {
		w.Add(1<<shift|0x2aaa_aaaa_aaaa_aaaa>>(62-shift), shift)
	}
	w.Add(math.MaxInt64, 63)
	if s := w.Stats(); s.OverflowWheels != 10 {
		t.Errorf("timers of all sizes use %d overflow wheels", s.OverflowWheels)
	}
	out, _ := w.Advance(math.MaxInt64, 0, nil)
	if s := w.Stats(); len(out) != 64 || s.Cascades > 64*10 || s.Cascades < 64*4 {
		t.Errorf("delivered %d, %d cascades", len(out), s.Cascades)
	}
}

// TestOverflowWheelsAreMadeOnDemand shows that a wheel of short timers has no wheels above.
func TestOverflowWheelsAreMadeOnDemand(t *testing.T) {
	w := New[int](0)
	for _, step := range []struct {
		at     Tick
		wheels int
	}{{5, 1}, {63, 1}, {64, 2}, {4095, 2}, {4096, 3}, {1 << 60, 4}} {
		w.Add(step.at, 0)
		made := 0
		for _, wheel := range w.wheels {
			if wheel != nil {
				made++
			}
		}
		if made != step.wheels || w.Stats().OverflowWheels != step.wheels-1 {
			t.Errorf("after a timer at %d: %d wheels, %+v", step.at, made, w.Stats())
		}
	}
}

// TestTheStandardLibraryIsEnough keeps the package usable by any program, without a dependency.
func TestTheStandardLibraryIsEnough(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			if root, _, _ := strings.Cut(spec.Path.Value, "/"); strings.Contains(root, ".") {
				t.Errorf("%s imports %s", file, spec.Path.Value)
			}
		}
	}
}
