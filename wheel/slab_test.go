package wheel

import (
	"math"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// TestCancelledLongTimersHoldNoMemory prevents a program that adds time-outs and cancels nearly all
// from growing until they would have been due.
func TestCancelledLongTimersHoldNoMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	w := New[uint64](0)
	before := heap()
	for i := range 2_000_000 {
		w.Cancel(w.Add(Tick(1_000_000+i), 0))
	}
	if grown := int64(heap() - before); grown > 1<<20 {
		t.Errorf("2·10⁶ timers added and cancelled one by one: the heap grew by %d", grown)
	}
	ids := make([]ID, 300_000)
	before = heap()
	for i := range ids {
		ids[i] = w.Add(Tick(1_000_000+i), 0)
	}
	if grown := int64(heap() - before); grown < 300_000*31 || grown > 300_000*33 {
		t.Errorf("a timer takes %.2f bytes", float64(grown)/300_000)
	}
	for _, id := range ids {
		w.Cancel(id)
	}
	if grown := int64(heap() - before); grown > 1<<20 {
		t.Errorf("300 000 timers cancelled: %d bytes are kept", grown)
	}
	inspect(t, w)
	runtime.KeepAlive(w)
}

// TestAPointerFreeTimerTakes32Bytes keeps the layout: the garbage collector has nothing to look at
// in it.
func TestAPointerFreeTimerTakes32Bytes(t *testing.T) {
	if size := reflect.TypeFor[node[uint64]]().Size(); size != 32 {
		t.Errorf("node[uint64] has %d bytes", size)
	}
	for field := range reflect.TypeFor[node[struct{ lane, slot uint32 }]]().Fields() {
		if k := field.Type.Kind(); k == reflect.Pointer || k == reflect.Slice || k == reflect.Map {
			t.Errorf("field %s holds a pointer", field.Name)
		}
	}
}

func TestAddAndCancelAllocateNothing(t *testing.T) {
	w := New[int](0)
	w.Add(1<<40, 0)
	at := Tick(0)
	if n := testing.AllocsPerRun(10_000, func() { at++; w.Cancel(w.Add(at, 0)) }); n != 0 {
		t.Errorf("%.2f allocations", n)
	}
}

// TestClearLeavesNothingBehind prevents entries from outliving a Clear: what is added then, at the
// same tick, fires, and old IDs name nothing. So a program can drop its wheel and rebuild it from
// what it stores.
func TestClearLeavesNothingBehind(t *testing.T) {
	w := New[int](0)
	var ids []ID
	for round := range 5 {
		for i := range 10_000 {
			ids = append(ids, w.Add(Tick(64+i), i))
		}
		w.Advance(Tick(64+round), 10, nil) // in the middle of a bucket
		if w.Clear(); w.Len() != 0 {
			t.Fatalf("Len %d after Clear", w.Len())
		}
		inspect(t, w)
	}
	for i := range 10_000 {
		w.Add(Tick(64+i), i)
	}
	for _, id := range ids {
		if _, ok := w.Cancel(id); ok {
			t.Fatal("an ID from before Clear names a timer")
		}
	}
	out, _ := w.Advance(100_000, 0, nil)
	if len(out) != 10_000 {
		t.Fatalf("%d of 10 000 fired after the rebuild", len(out))
	}
}

// TestValuesOfEndedTimersCanBeCollected prevents the slab, or the last batch of a runner, from
// holding what a timer pointed to: after it fired, was cancelled, or was cleared.
func TestValuesOfEndedTimersCanBeCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner[*[64]int](0)
		var held []weak.Pointer[[64]int]
		timer := func(at time.Duration) ID {
			v := new([64]int)
			held = append(held, weak.Make(v))
			return add(t, r, at, v)
		}
		add(t, r, time.Hour, nil) // keeps the chunk
		stop := run(t, r, func([]*[64]int) {})
		r.Cancel(timer(time.Minute))
		timer(time.Second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		runtime.GC()
		for i, p := range held {
			if p.Value() != nil {
				t.Errorf("the value of timer %d is held", i)
			}
		}
		timer(time.Minute)
		r.Clear()
		runtime.GC()
		if held[2].Value() != nil {
			t.Error("the value of a cleared timer is held")
		}
		_ = stop()
	})
}

// TestGenerationsComeRound prevents the 2³²th timer from having the generation of a free place.
func TestGenerationsComeRound(t *testing.T) {
	w := New[int](0)
	w.generation = math.MaxUint32 - 1
	for i := range 3 {
		if v, ok := w.Cancel(w.Add(5, i)); !ok || v != i {
			t.Errorf("Cancel of timer %d = %d, %v", i, v, ok)
		}
	}
}
