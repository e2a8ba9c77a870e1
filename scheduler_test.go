package bide

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes a fresh one")

var laneA, laneB = Lane{"in", 0}, Lane{"in", 1}

// running is a scheduler at work.
type running struct {
	*Scheduler
	p    *process
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, k *fakeKafka, log Log, tweak ...func(*Options)) *running {
	t.Helper()
	o := Options{Cluster: k.process(), Log: log, Contract: fakeContract{}, Instance: "one"}
	for _, f := range tweak {
		f(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Scheduler: s, p: o.Cluster.(*process), stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	return r
}

// end stops the scheduler as SIGTERM does.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// kill ends the scheduler as SIGKILL does, and takes what it had not synced.
func (r *running) kill(log *fakeLog) *fakeLog {
	after := log.crash()
	r.p.kill()
	<-r.done
	r.stop()
	return after
}

func TestMessagesArriveInTheirMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		// Two hundred years of seconds would be too many to simulate.
		r := start(t, k, newFakeLog(), func(o *Options) { o.Limits.ClockEvery, o.Limits.UpkeepEvery = 24*time.Hour, 24*time.Hour })
		begin := time.Now()
		delays := []time.Duration{
			0, time.Millisecond, 63 * time.Millisecond, 64 * time.Millisecond, time.Second, horizonMs * time.Millisecond,
			(horizonMs + 1) * time.Millisecond, 40 * time.Second, 49*24*time.Hour + 17*time.Hour, 365 * 24 * time.Hour, 200 * 365 * 24 * time.Hour,
		}
		for i, d := range delays {
			k.produce(laneA, fmt.Sprint(i), dueAt(begin.Add(d)))
		}
		for i, d := range delays {
			time.Sleep(time.Until(begin.Add(d)))
			time.Sleep(20 * time.Millisecond)
			seen := k.deliveries()
			due := 0
			for _, other := range delays {
				if other <= d+20*time.Millisecond {
					due++
				}
			}
			if len(seen) != due {
				t.Fatalf("%v: %d delivered, want %d", d, len(seen), due)
			}
			late := seen[i].at.Sub(begin.Add(d))
			if late < 0 || late > 15*time.Millisecond {
				t.Errorf("%v: delivered %v after due", d, late)
			}
		}
		r.end(t)
	})
}

func TestALateArrivalIsHeldUntilItIsDueByTheOwnersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		begin := time.Now()
		// An owner whose clock is a minute ahead has moved the cursor past what is due in ten seconds.
		k.commits[laneA] = Commit{Cursor: Position{begin.Add(time.Minute).UnixMilli(), 0}, TopicID: k.topicID, Lanes: 1}
		r := start(t, k, newFakeLog())
		k.produce(laneA, "late", dueAt(begin.Add(10*time.Second)))
		time.Sleep(10*time.Second - time.Millisecond)
		if n := len(k.deliveries()); n != 0 {
			t.Fatalf("%d delivered before due", n)
		}
		time.Sleep(50 * time.Millisecond)
		if n := len(k.deliveries()); n != 1 {
			t.Fatalf("%d delivered when due, want 1", n)
		}
		r.end(t)
	})
}

func TestBadRecordsBecomeDeadLettersAndTheLaneGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		r := start(t, k, newFakeLog())
		k.produce(laneA, "bad", Header{Key: "due", Value: []byte("soon")})
		k.produce(laneA, "nowhere")
		k.produce(laneA, "good")
		time.Sleep(time.Second)
		codes := map[string]string{}
		for _, d := range k.deliveries() {
			code := "delivered"
			if d.item.Fate.Kind == DeadLetter {
				code = d.item.Fate.Rejection.Code
			}
			codes[string(d.item.Key)] = code
		}
		want := map[string]string{"bad": "malformed-header", "nowhere": "no-target", "good": "delivered"}
		if fmt.Sprint(codes) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", codes, want)
		}
		r.end(t)
		if c := k.commit(laneA); c.Next != 3 || c.Low != 3 {
			t.Errorf("next %d low %d, want 3 3", c.Next, c.Low)
		}
	})
}

func TestOffsetsAreCommittedThoughNothingIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		r := start(t, k, newFakeLog())
		k.produce(laneA, "far", dueAt(time.Now().Add(time.Hour)))
		time.Sleep(1100 * time.Millisecond)
		if c := k.commit(laneA); c.Next != 1 || c.Low != 0 {
			t.Errorf("next %d low %d, want 1 0", c.Next, c.Low)
		}
		r.end(t)
	})
}

func TestAStepOfTheClockLosesNothingAndDeliversNothingEarly(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeKafka(laneA)
				begin := time.Now()
				wall := func() time.Time {
					if now := time.Now(); now.Sub(begin) >= 10*time.Second {
						return now.Add(step)
					}
					return time.Now()
				}
				r := start(t, k, newFakeLog(), func(o *Options) { o.Wall = wall })
				for i := range 200 {
					k.produce(laneA, fmt.Sprint(i), dueAt(begin.Add(time.Duration(i)*time.Minute)))
				}
				time.Sleep(12 * time.Second)
				for range 400 {
					time.Sleep(time.Minute)
					for _, d := range k.deliveries() {
						at := d.at
						if at.Sub(begin) >= 10*time.Second {
							at = at.Add(step)
						}
						if at.UnixMilli() < d.item.DueMs {
							t.Fatalf("message due %d delivered at %d", d.item.DueMs, at.UnixMilli())
						}
					}
				}
				if n := len(k.deliveries()); n != 200 {
					t.Errorf("%d delivered, want 200", n)
				}
				r.end(t)
			})
		})
	}
}

func TestRequeuedMessagesComeBackAndOthersAreNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		down := true
		k.fate = func(plans []*Plan) (bool, Result) {
			res := Result{Outcome: Committed}
			for _, p := range plans {
				for i, item := range p.Items {
					if down && string(item.Key) == "down" && item.Fate.Kind == Deliver {
						res.Outcome, res.Err = Aborted, errors.New("no leader")
						res.Failures = append(res.Failures, Failure{Item: i, Kind: Unavailable, Rejection: &Rejection{Code: "unavailable"}})
					}
				}
			}
			return res.Outcome == Committed, res
		}
		r := start(t, k, newFakeLog())
		k.produce(laneA, "down")
		k.produce(laneA, "up")
		time.Sleep(500 * time.Millisecond)
		if seen := k.deliveries(); len(seen) != 1 || string(seen[0].item.Key) != "up" {
			t.Fatalf("seen %v, want up alone", seen)
		}
		k.mu.Lock()
		down = false
		k.mu.Unlock()
		time.Sleep(time.Minute)
		if seen := k.deliveries(); len(seen) != 2 {
			t.Errorf("%d delivered after the target came back, want 2", len(seen))
		}
		r.end(t)
	})
}

// TestNothingIsLostEarlyOrTwice drives schedulers one after another through random produces, kills,
// lost disks, aborted transactions and unknown outcomes.
func TestNothingIsLostEarlyOrTwice(t *testing.T) {
	for i := range 30 {
		seed := *seedFlag
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) { torment(t, rand.New(rand.NewPCG(seed, 0))) })
		})
		if *seedFlag != 0 {
			break
		}
	}
}

func torment(t *testing.T, rnd *rand.Rand) {
	k := newFakeKafka(laneA, laneB)
	luck := rand.New(rand.NewPCG(rnd.Uint64(), 1)) // used under Kafka's lock
	k.fate = func([]*Plan) (bool, Result) {
		if luck.IntN(10) == 0 {
			return false, Result{Outcome: Aborted, Err: errors.New("injected")}
		}
		return true, Result{Outcome: Committed}
	}
	upkeep := Upkeep{Trim: rnd.IntN(2) == 0, Carry: rnd.IntN(2) == 0}
	if upkeep.Carry && rnd.IntN(2) == 0 {
		upkeep.Retention = 3 * time.Second
	}
	tweak := func(o *Options) {
		o.Upkeep = func(string) Upkeep { return upkeep }
		o.Limits.UpkeepEvery, o.Limits.DeadOffsets = 100*time.Millisecond, 10
	}
	log := newFakeLog()
	r := start(t, k, log, tweak)
	produced := map[Lane]int{}
	for range 300 {
		switch rnd.IntN(12) {
		case 0:
			log = r.kill(log)
			if rnd.IntN(3) == 0 {
				log = newFakeLog()
			}
			r = start(t, k, log, tweak)
		case 1:
			r.end(t)
			r = start(t, k, log, tweak)
		case 2:
			time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		default:
			l := Lane{"in", int32(rnd.IntN(2))}
			for range rnd.IntN(20) {
				due := time.Now().Add(time.Duration(rnd.IntN(4000)-500) * time.Millisecond)
				if rnd.IntN(20) == 0 {
					due = due.Add(30 * time.Second)
				}
				k.produce(l, fmt.Sprint(produced[l]), dueAt(due))
				produced[l]++
			}
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		}
	}
	time.Sleep(time.Minute)
	check(t, k, produced)
	r.end(t)
	for l := range produced {
		if c := k.commit(l); c.Next != int64(len(k.records[l])) || c.Low != c.Next {
			t.Errorf("%v: committed next %d low %d, want %d for both", l, c.Next, c.Low, len(k.records[l]))
		}
		if w := log.lanes[l]; len(w.msgs) != 0 {
			t.Errorf("%v: %d messages left in the log", l, len(w.msgs))
		}
	}
}

// check compares what was delivered with what was produced: each message once, none early, and equal
// dues of a lane in order. A message's key is its number in its lane.
func check(t *testing.T, k *fakeKafka, produced map[Lane]int) {
	t.Helper()
	counts := map[string]int{}
	last := map[string]int64{} // by lane and due: the offset delivered last
	for _, d := range k.deliveries() {
		counts[fmt.Sprint(d.lane, string(d.item.Key))]++
		if d.at.UnixMilli() < d.item.DueMs {
			t.Errorf("%v/%s: due %d, delivered %d", d.lane, d.item.Key, d.item.DueMs, d.at.UnixMilli())
		}
		key := fmt.Sprint(d.lane, d.item.DueMs)
		if was, ok := last[key]; ok && was > d.item.Offset {
			t.Errorf("%v: offset %d delivered after %d, both due %d", d.lane, d.item.Offset, was, d.item.DueMs)
		}
		last[key] = d.item.Offset
	}
	for l, n := range produced {
		for i := range n {
			if c := counts[fmt.Sprint(l, strconv.Itoa(i))]; c != 1 {
				t.Errorf("%v: message %d delivered %d times", l, i, c)
			}
		}
	}
}

func TestCarryingKeepsTheIngressSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		r := start(t, k, newFakeLog(), func(o *Options) {
			o.Upkeep = func(string) Upkeep { return Upkeep{Trim: true, Carry: true} }
			o.Limits.DeadOffsets = 100
		})
		k.produce(laneA, "year", dueAt(time.Now().Add(365*24*time.Hour)))
		for range 100 {
			for range 50 {
				k.produce(laneA, "short")
			}
			time.Sleep(10 * time.Second)
			if held := k.held(laneA); held > 400 {
				t.Fatalf("the ingress holds %d records while one waits", held)
			}
		}
		if seen := k.deliveries(); len(seen) != 5000 {
			t.Errorf("%d delivered, want 5000", len(seen))
		}
		if c := k.commit(laneA); c.Low < 4000 {
			t.Errorf("low %d, want it near next %d", c.Low, c.Next)
		}
		r.end(t)
	})
}

func TestWhatCannotBeCarriedHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		refused := 0
		k.fate = func(plans []*Plan) (bool, Result) {
			res := Result{Outcome: Committed}
			for i, item := range plans[0].Items {
				if item.Fate.Kind == Carry {
					res.Outcome, refused = Aborted, refused+1
					res.Failures = append(res.Failures, Failure{Item: i, Kind: Refused, Rejection: &Rejection{Code: "target-unauthorized"}})
				}
			}
			return res.Outcome == Committed, res
		}
		r := start(t, k, newFakeLog(), func(o *Options) {
			o.Upkeep = func(string) Upkeep { return Upkeep{Carry: true} }
			o.Limits.DeadOffsets = 10
		})
		k.produce(laneA, "long", dueAt(time.Now().Add(time.Hour)))
		for i := range 100 {
			k.produce(laneA, "short")
			time.Sleep(time.Second)
			if seen := len(k.deliveries()); seen != i+1 {
				t.Fatalf("%d delivered after %d", seen, i+1)
			}
		}
		k.mu.Lock()
		tried := refused
		k.mu.Unlock()
		if tried == 0 {
			t.Fatal("nothing was carried, so nothing was refused")
		}
		time.Sleep(time.Hour)
		if seen := len(k.deliveries()); seen != 101 {
			t.Errorf("%d delivered, want 101", seen)
		}
		r.end(t)
	})
}

func TestRetentionMayBeShorterThanDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		const retention = time.Minute
		log := newFakeLog()
		tweak := func(o *Options) {
			o.Upkeep = func(string) Upkeep { return Upkeep{Carry: true, Retention: retention} }
		}
		r := start(t, k, log, tweak)
		for i := range 50 {
			k.produce(laneA, strconv.Itoa(i), dueAt(time.Now().Add(10*time.Minute+time.Duration(i)*time.Second)))
		}
		for i := range 60 {
			time.Sleep(10 * time.Second)
			k.expire(retention)
			if i%7 == 6 {
				r.kill(log)
				log = newFakeLog() // the disk is lost as well
				r = start(t, k, log, tweak)
			}
		}
		time.Sleep(2 * time.Minute)
		check(t, k, map[Lane]int{laneA: 50})
		r.end(t)
	})
}

func TestALaneWhoseCommitIsRefusedHoldsNoOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA, laneB)
		broken := false
		k.fate = func(plans []*Plan) (bool, Result) {
			for _, p := range plans {
				if broken && p.Lane == laneA {
					return false, Result{Outcome: Aborted, Err: errors.New("commit refused")}
				}
			}
			return true, Result{Outcome: Committed}
		}
		r := start(t, k, newFakeLog())
		time.Sleep(time.Second)
		k.mu.Lock()
		broken = true
		k.mu.Unlock()
		k.produce(laneA, "a")
		k.produce(laneB, "b")
		time.Sleep(time.Second)
		for range 100 {
			k.produce(laneB, "b")
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := len(k.deliveries()); n != 101 {
			t.Errorf("%d of lane B delivered beside a lane that fails, want 101", n)
		}
		k.mu.Lock()
		broken = false
		k.mu.Unlock()
		time.Sleep(5 * time.Second)
		if n := len(k.deliveries()); n != 102 {
			t.Errorf("%d delivered in the end, want 102", n)
		}
		r.end(t)
	})
}

func TestAReplacedIngressStopsALaneThatWaits(t *testing.T) {
	for i := range 4 {
		discard, dropCommit := i%2 == 1, i/2 == 1
		t.Run(fmt.Sprintf("discard %v, commit dropped %v", discard, dropCommit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newFakeKafka(laneA)
				r := start(t, k, newFakeLog(), func(o *Options) { o.Policy.DiscardRecreated = discard })
				k.produce(laneA, "far", dueAt(time.Now().Add(time.Hour)))
				time.Sleep(5 * time.Second)
				k.recreate(laneA, dropCommit)
				k.produce(laneA, "new")
				time.Sleep(30 * time.Second)
				status := r.Status().Lanes[0]
				if discard {
					if n := len(k.deliveries()); n != 1 || !status.Delivers() {
						t.Errorf("%d delivered, lane %s: %s; want the one of the new topic", n, status.State, status.Reason)
					}
				} else if status.State != "stopped" || !strings.Contains(status.Reason, "on-recreated") || strings.Contains(status.Reason, laneA.String()) || len(k.deliveries()) != 0 {
					t.Errorf("lane %s: %s; %d delivered", status.State, status.Reason, len(k.deliveries()))
				}
				r.end(t)
			})
		})
	}
}

func TestAStoppedLaneTellsWhatWaitsAndClaimsNoOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newFakeKafka(laneA), newFakeLog()
		r := start(t, k, log)
		k.produce(laneA, "far", dueAt(time.Now().Add(time.Minute)))
		time.Sleep(5 * time.Second)
		r.end(t)
		k.recreate(laneA, false)

		r = start(t, k, log) // a process that has not loaded the lane before
		time.Sleep(2 * time.Minute)
		st := r.Status().Lanes[0]
		if st.State != "stopped" || st.Loaded || st.Waiting != 1 || st.OverdueMs < 60_000 {
			t.Errorf("%+v; want a stopped lane that is not loaded, and one message that is late", st)
		}
		r.end(t)
	})
}

func TestTheReasonOfAStopNamesItsCauseAndNotTheLane(t *testing.T) {
	err := fmt.Errorf("lane %s: %w: offset 9 was committed without metadata", laneA, ErrForeignCommit)
	if text, want := unnamed(laneA, err), ErrForeignCommit.Error()+": offset 9 was committed without metadata"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

func TestMetricsTellWhetherTheGroupIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		k := newFakeKafka(laneA)
		r := start(t, k, newFakeLog(), func(o *Options) { o.Metrics = NewMetrics(registry) })
		time.Sleep(time.Second)
		if v := gaugeOf(t, registry, "bide_group_joined"); v != 1 {
			t.Errorf("%v once lanes are assigned, want 1", v)
		}
		r.Lost([]Lane{laneA})
		if v := gaugeOf(t, registry, "bide_group_joined"); v != 0 {
			t.Errorf("%v once they are lost, want 0", v)
		}
		r.end(t)
	})
}

// gaugeOf returns the value of a gauge without labels.
func gaugeOf(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestALaneWhoseDeadLetterIsRefusedSaysSoAndMendsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeKafka(laneA)
		tooLarge := true
		k.fate = func(plans []*Plan) (bool, Result) {
			res := Result{Outcome: Committed}
			for i, item := range plans[0].Items {
				if tooLarge && item.Fate.Kind == DeadLetter {
					res.Outcome = Aborted
					res.Failures = append(res.Failures, Failure{Item: i, Kind: Refused, Rejection: &Rejection{Code: "too-large", Reason: "larger than the dead-letter topic takes"}})
				}
			}
			return res.Outcome == Committed, res
		}
		r := start(t, k, newFakeLog())
		k.produce(laneA, "bad", Header{Key: "due", Value: []byte("soon")})
		k.produce(laneA, "good")
		time.Sleep(10 * time.Second)
		if status := r.Status(); status.Ready() || !strings.Contains(status.Lanes[0].Reason, "offset 0") || len(k.deliveries()) != 0 {
			t.Errorf("ready %v, lane %+v, %d delivered; want a lane that says why it is stopped", status.Ready(), status.Lanes[0], len(k.deliveries()))
		}
		k.mu.Lock()
		tooLarge = false
		k.mu.Unlock()
		time.Sleep(5 * time.Second)
		if status := r.Status(); !status.Ready() || len(k.deliveries()) != 2 {
			t.Errorf("ready %v, %d settled after the topic was mended, want 2", status.Ready(), len(k.deliveries()))
		}
		r.end(t)
	})
}
