package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bide-mq/bide"
)

const (
	// markerLimit is how old a committed transaction is before its markers are looked for: at rest they
	// take 5 to 20 ms. An id that commits again and again is looked at only where it stops to: markers
	// of the next transaction end all that came before it on a partition.
	markerLimit = time.Second
	// markerEvery is how often they are looked for while some have not been seen.
	markerEvery = time.Second
	// markerCheckTimeout bounds what one look, or one heal, may hold up a transaction that waits for it.
	markerCheckTimeout = 2 * time.Second
)

// ending is how a transaction ended: what its markers say.
type ending struct {
	producer int64
	epoch    int16 // of its records
	commit   bool
	bumps    bool // markers carry epoch+1: transaction.version 2
}

// mark is a committed transaction's marker that has not been seen in a partition yet.
type mark struct {
	ending
	offset int64     // the last record of the transaction there; −1 where it is not known
	lane   bide.Lane // of the group's offsets: one that it committed
	at     time.Time
}

// covers reports whether the transaction that a partition has open is the one that should have ended.
func (m mark) covers(o openTxn) bool {
	return m.producer == o.producer && m.epoch == o.epoch && (m.offset < 0 || o.start <= m.offset)
}

// markKeeper remembers what committed transactions wrote until their markers have been seen there, and
// how the last transaction of each id ended, which the coordinator forgets when the id is initialised
// anew. It holds at most one mark for an id and partition, and drops those of deleted topics.
type markKeeper struct {
	wake chan struct{} // capacity 1: there is a mark

	mu struct {
		sync.Mutex
		marks map[string]map[topicPartition]mark // by transactional id
		ends  map[string]ending
		lost  map[lostKey]*lostMark
		// looked is when markers of an id were last looked for and some not found.
		looked map[string]time.Time
	}
}

// lostKey names a marker that is known to be lost.
type lostKey struct {
	at       topicPartition
	producer int64
}

type lostMark struct {
	txnID      string
	seen, told time.Time
}

func (k *markKeeper) init() {
	k.wake = make(chan struct{}, 1)
	k.mu.marks = make(map[string]map[topicPartition]mark)
	k.mu.ends = make(map[string]ending)
	k.mu.lost = make(map[lostKey]*lostMark)
	k.mu.looked = make(map[string]time.Time)
}

// lookedFor reports whether markers of an id were looked for a moment ago, and some not found.
func (k *markKeeper) lookedFor(txnID string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.mu.looked[txnID]) < 2*markerEvery
}

func (k *markKeeper) look(txnIDs []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range txnIDs {
		k.mu.looked[id] = time.Now()
	}
}

// committed notes what a transaction of an id wrote.
func (k *markKeeper) committed(txnID string, end ending, written map[topicPartition]int64, offsets topicPartition, lane bide.Lane) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for p, offset := range written {
		k.putLocked(txnID, p, mark{ending: end, offset: offset, at: now})
	}
	k.putLocked(txnID, offsets, mark{ending: end, offset: -1, lane: lane, at: now})
	k.mu.ends[txnID] = end
}

// ended notes how the last transaction of an id ended, as the coordinator has it, and partitions that
// could not be asked whether they know.
func (k *markKeeper) ended(txnID string, end ending, unasked []topicPartition) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.ends[txnID] = end
	for _, p := range unasked {
		if _, ok := k.mu.marks[txnID][p]; !ok {
			k.putLocked(txnID, p, mark{ending: end, offset: -1})
		}
	}
}

func (k *markKeeper) putLocked(txnID string, p topicPartition, m mark) {
	of := k.mu.marks[txnID]
	if of == nil {
		of = make(map[topicPartition]mark)
		k.mu.marks[txnID] = of
	}
	of[p] = m
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// seen forgets a mark, unless a later transaction has replaced it.
func (k *markKeeper) seen(txnID string, p topicPartition, m mark) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.marks[txnID][p] == m {
		delete(k.mu.marks[txnID], p)
	}
}

// end returns how the last transaction of an id ended, where this process knows.
func (k *markKeeper) end(txnID string) (ending, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.mu.ends[txnID]
	return e, ok
}

// of returns the marks of an id that are older than age.
func (k *markKeeper) of(txnID string, age time.Duration) map[topicPartition]mark {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := make(map[topicPartition]mark)
	for p, m := range k.mu.marks[txnID] {
		if time.Since(m.at) >= age {
			found[p] = m
		}
	}
	return found
}

// ids returns the transactional ids that have marks, and those that are known to miss some.
func (k *markKeeper) ids() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []string
	for id, of := range k.mu.marks {
		if len(of) > 0 {
			ids = append(ids, id)
		}
	}
	for _, l := range k.mu.lost {
		ids = append(ids, l.txnID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// lostOf returns the partitions that are known to miss a marker of one of the ids.
func (k *markKeeper) lostOf(txnIDs []string) (parts []topicPartition) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, l := range k.mu.lost {
		if slices.Contains(txnIDs, l.txnID) {
			parts = append(parts, key.at)
		}
	}
	return parts
}

// mended forgets lost markers that are none, by what partitions have open.
func (k *markKeeper) mended(open map[topicPartition][]openTxn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.mu.lost {
		if txns, ok := open[key.at]; ok && !slices.ContainsFunc(txns, func(o openTxn) bool { return o.producer == key.producer }) {
			delete(k.mu.lost, key)
		}
	}
}

// missing returns how many markers are known to be lost and not written yet.
func (k *markKeeper) missing() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.lost)
}

// keepMarkers looks for the markers of committed transactions until the cluster is closed. With none to
// look for it sleeps.
func (c *Cluster) keepMarkers() {
	for {
		select {
		case <-c.markers.wake:
		case <-c.life.Done():
			return
		}
		for ids := c.markers.ids(); len(ids) > 0; ids = c.markers.ids() {
			if !rest(c.life, markerEvery) {
				return
			}
			c.lookForMarkers(c.life, ids, markerLimit, c.hold)
		}
	}
}

// lookForMarkers looks for the markers of committed transactions older than age, and heals what is lost.
// It reports whether none is left to be seen.
func (c *Cluster) lookForMarkers(ctx context.Context, ids []string, age time.Duration, hold holdFunc) bool {
	var targets []topicPartition
	marks := make(map[string]map[topicPartition]mark, len(ids))
	for _, id := range ids {
		marks[id] = c.markers.of(id, age)
		for p, m := range marks[id] {
			if m.offset >= 0 && !slices.Contains(targets, p) {
				targets = append(targets, p)
			}
		}
	}
	stable := c.lastStable(ctx, targets)
	var left []string
	for id, of := range marks {
		for p, m := range of {
			if at, ok := stable[p]; ok && m.offset >= 0 && at > m.offset {
				c.markers.seen(id, p, m)
				delete(of, p)
			}
		}
		if len(of) > 0 {
			left = append(left, id)
		}
	}
	lost := c.markers.lostOf(ids)
	if len(left) == 0 && len(lost) == 0 {
		return true
	}
	if len(lost) > 0 {
		left = ids
	}
	err := c.heal(ctx, left, lost, hold)
	if err != nil {
		c.markers.look(left)
	}
	return err == nil
}

// holdFunc takes an id out of use, so that nothing is begun under it until release is called; false
// says that it is in use. An id of no own is nobody's.
type holdFunc func(txnID string) (release func(), ok bool)

// held is the holdFunc of a caller that holds what it heals.
func held(string) (func(), bool) { return func() {}, true }

// hold takes an own id that is not in use.
func (c *Cluster) hold(txnID string) (release func(), ok bool) {
	if c.ids == nil {
		return func() {}, true
	}
	if txnID == c.commits.id {
		select {
		case c.commits.turn <- struct{}{}:
			return func() { <-c.commits.turn }, true
		default:
			return nil, false
		}
	}
	if s := c.ids.slot(txnID); s != nil {
		if !s.use.TryLock() {
			return nil, false
		}
		return s.use.Unlock, true
	}
	return func() {}, true
}

// renewed has an own id that the caller holds initialised before it is used again.
func (c *Cluster) renewed(txnID string) {
	if c.ids == nil {
		return
	}
	if txnID == c.commits.id {
		c.commits.stale.Store(true)
	} else if s := c.ids.slot(txnID); s != nil {
		c.ids.drop(s)
	}
}

// clear reports whether a transaction may begin under an id that the caller holds: no marker of an earlier
// one is missing where this one may write. With a marker missing an aborted transaction would take the
// committed records along.
func (c *Cluster) clear(ctx context.Context, txnID string) bool {
	old := c.markers.of(txnID, markerLimit)
	if len(old) == 0 {
		return true
	}
	offsets := false
	for p := range old {
		offsets = offsets || p.topic == offsetsTopic
	}
	if !offsets && c.markers.lookedFor(txnID) {
		return false // a target without a leader; it is asked once a second, not by each transaction
	}
	ctx, cancel := context.WithTimeout(ctx, markerCheckTimeout)
	defer cancel()
	return c.lookForMarkers(ctx, []string{txnID}, markerLimit, held)
}
