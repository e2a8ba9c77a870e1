//go:build synctests

package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bide-mq/bide"
)

// events are what may happen, with how often each does compared with the others.
var events = []struct {
	name   string
	weight int
	run    func(*world)
}{
	{"stop", 2, (*world).stopOne},
	{"kill", 4, (*world).killOne},
	{"freeze", 3, (*world).freezeOne},
	{"replace", 1, (*world).replaceOne},
	{"scale", 2, (*world).scale},
	{"weather", 4, (*world).changeWeather},
	{"refuse", 8, (*world).refuse},
	{"leaders", 2, (*world).moveLeaders},
	{"outage", 2, (*world).outage},
	{"clock", 2, (*world).setClock},
}

// chaos has one event after the other happen, for as long as the settings say.
func (w *world) chaos(ctx context.Context) {
	total := 0
	enabled := func(name string) bool {
		return *flagOnly == "" || slices.Contains(strings.Split(*flagOnly, ","), name)
	}
	for _, e := range events {
		if enabled(e.name) {
			total += e.weight
		}
	}
	for end := time.Now().Add(w.set.chaos); time.Now().Before(end) && ctx.Err() == nil; {
		w.advance(ctx, time.Now().Add(time.Duration(w.rng.ExpFloat64()*float64(1500*time.Millisecond))))
		w.reap()
		if total == 0 {
			continue
		}
		pick := w.rng.IntN(total)
		for _, e := range events {
			if !enabled(e.name) {
				continue
			}
			if pick -= e.weight; pick < 0 {
				w.counts[e.name]++
				e.run(w)
				break
			}
		}
	}
}

// startAll starts instances that do not run.
func (w *world) startAll() {
	for _, id := range w.ids() {
		w.startLater(w.instances[id], 0)
	}
}

func (w *world) ids() (ids []string) {
	for id := range w.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// startLater starts an instance after a while, unless it runs then. What runs in it still and was stopped
// keeps its disk until it has ended.
func (w *world) startLater(in *instance, d time.Duration) {
	if in.next {
		return
	}
	in.next = true
	w.later(d, func() {
		in.next = false
		if p := in.proc; p != nil && !p.killed.Load() {
			select {
			case <-p.done:
			default:
				if p.stopped {
					w.startLater(in, 200*time.Millisecond)
				}
				return
			}
		}
		in.proc = w.launch(in.id, in.disk)
	})
}

// reap looks after processes that ended by themselves, as a supervisor does. There is one reason for that: another
// process has the instance id, or seems to, since a join that was under way when its sender was killed,
// frozen or cut off arrived after a later one.
func (w *world) reap() {
	for _, id := range w.ids() {
		in := w.instances[id]
		p := in.proc
		if p == nil || !p.alive() {
			if p != nil && p.err != nil && !p.killed.Load() && !p.stopped {
				w.endedByItself(p)
				w.startLater(in, time.Second)
			}
			continue
		}
	}
}

func (w *world) endedByItself(p *process) {
	if !errors.Is(p.err, bide.ErrFenced) || len(w.counts) == 0 {
		w.fail("%s ended by itself: %v", p, p.err)
	}
	w.counts["fenced"]++
	p.stopped = true
}

// anyAlive returns a process that runs and is not frozen, at random.
func (w *world) anyAlive() *process {
	var alive []*process
	for _, id := range w.ids() {
		if p := w.instances[id].proc; p != nil && p.alive() && !p.frozen {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[w.rng.IntN(len(alive))]
}

// downtime is how long an instance stays away: often for less than a session, sometimes for more.
func (w *world) downtime() time.Duration {
	if w.rng.IntN(3) == 0 {
		return time.Duration(w.rng.IntN(20_000)) * time.Millisecond
	}
	return time.Duration(w.rng.IntN(2000)) * time.Millisecond
}

func (w *world) stopOne() {
	if p := w.anyAlive(); p != nil {
		p.stop()
		w.startLater(w.instances[p.id], w.downtime())
	}
}

func (w *world) killOne() {
	p := w.anyAlive()
	if p == nil {
		return
	}
	in := w.instances[p.id]
	in.disk = p.kill(w.rng)
	if w.rng.IntN(4) == 0 {
		w.logf("disk of %s is lost", p.id)
		in.disk = vfs.NewCrashableMem()
	}
	w.startLater(in, w.downtime())
}

func (w *world) freezeOne() {
	p := w.anyAlive()
	if p == nil {
		return
	}
	d := time.Duration(w.rng.IntN(16_000)) * time.Millisecond
	w.logf("freeze %s for %v", p, d)
	p.freeze()
	w.later(d, p.thaw)
}

// replaceOne starts a second process with the id of one that is frozen, which then wakes up.
func (w *world) replaceOne() {
	p := w.anyAlive()
	if p == nil {
		return
	}
	d := time.Duration(w.rng.IntN(12_000)) * time.Millisecond
	w.logf("freeze %s for %v, and replace it", p, d)
	p.freeze()
	in := w.instances[p.id]
	in.disk = p.disk.CrashClone(vfs.CrashCloneCfg{})
	if w.rng.IntN(2) == 0 {
		in.disk = vfs.NewCrashableMem()
	}
	in.proc = w.launch(p.id, in.disk)
	w.later(d, func() {
		p.thaw()
		// One of the two has to go: the one that joined first, as the cluster saw it.
		rival := in.proc
		w.later(30*time.Second, func() {
			if p.alive() && rival.alive() && !rival.frozen {
				w.fail("%s and %s run both, 30 s after the first one woke up", p, rival)
			}
		})
	})
}

func (p *process) freeze() {
	p.frozen = true
	p.wire.freeze()
}

func (p *process) thaw() {
	if p.frozen {
		p.w.logf("thaw %s", p)
		p.frozen = false
		p.wire.thaw()
	}
}

// scale removes or adds an instance for a while.
func (w *world) scale() {
	p := w.anyAlive()
	if p == nil || len(w.instances) == 1 {
		return
	}
	w.logf("scale down by %s", p)
	p.stop()
	w.startLater(w.instances[p.id], time.Duration(8000+w.rng.IntN(10_000))*time.Millisecond)
}

func (w *world) changeWeather() {
	kinds := w.weather.change(w.rng)
	d := time.Duration(1000+w.rng.IntN(9000)) * time.Millisecond
	w.logf("weather for %v: %s", d, strings.Join(kinds, ", "))
	w.later(d, w.weather.clear)
}

func (w *world) moveLeaders() {
	switch w.rng.IntN(3) {
	case 0:
		w.logf("shuffle leaders")
		w.fake.ShufflePartitionLeaders()
	case 1:
		w.logf("move coordinators")
		w.fake.RehashCoordinators()
	default:
		p, node := int32(w.rng.IntN(w.set.lanes)), int32(w.rng.IntN(w.set.brokers))
		w.logf("move %s/%d to broker %d", ingress, p, node)
		if err := w.fake.MoveTopicPartition(ingress, p, node); err != nil {
			w.fail("move a partition: %v", err)
		}
	}
}

// outage cuts all instances off from one broker, or from all.
func (w *world) outage() {
	addrs := w.addrs()
	if w.rng.IntN(2) == 0 {
		i := w.rng.IntN(len(addrs))
		addrs = addrs[i : i+1]
	}
	d := time.Duration(w.rng.IntN(12_000)) * time.Millisecond
	w.logf("outage of %v for %v", addrs, d)
	set := func(down bool) {
		for _, addr := range addrs {
			w.down[addr] = down
			for _, p := range w.procs {
				p.wire.setDown(addr, down)
			}
		}
	}
	set(true)
	w.later(d, func() { set(false) })
}

func (w *world) setClock() {
	if !w.set.skew {
		return
	}
	in := w.instances[w.ids()[w.rng.IntN(len(w.instances))]]
	ahead := time.Duration(w.rng.IntN(6000)-3000) * time.Millisecond
	w.logf("clock of %s is %v ahead", in.id, ahead)
	in.ahead.Store(int64(ahead))
	w.maxAhead = max(w.maxAhead, ahead)
}

// blackout kills every instance at once and waits until all that they left open has ended.
func (w *world) blackout() {
	w.logf("blackout")
	for _, id := range w.ids() {
		in := w.instances[id]
		if p := in.proc; p != nil && p.alive() {
			in.disk = p.kill(w.rng)
			if w.rng.IntN(3) == 0 {
				w.logf("disk of %s is lost", p.id)
				in.disk = vfs.NewCrashableMem()
			}
		}
	}
	for _, p := range w.procs {
		p.thaw()
		p.wire.kill(true)
		p.killed.Store(true)
		p.cancel()
	}
	w.agenda = nil
	for _, in := range w.instances {
		in.next = false
	}
	time.Sleep(w.set.transactionTimeout + 15*time.Second)
	for _, p := range w.procs {
		w.await(p)
	}
}

// calm ends all faults.
func (w *world) calm() {
	w.logf("faults end")
	w.weather.clear()
	for _, h := range w.handles {
		h.Remove()
	}
	for _, p := range w.procs {
		p.thaw()
		for _, addr := range w.addrs() {
			p.wire.setDown(addr, false)
		}
	}
	clear(w.down)
}

// await waits until a process has ended that was told to, and says so where it takes too long.
func (w *world) await(p *process) {
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		w.fail("%s has not ended 60 s after it was told to", p)
		<-p.done
	}
	if p.err != nil && !p.killed.Load() && !errors.Is(p.err, bide.ErrFenced) {
		w.fail("%s: %v", p, p.err)
	}
}
