package bide

import (
	"context"
	"errors"
)

// Errors of a [Log].
var (
	// ErrLogCorrupt says that stored data of a lane cannot be read. The lane can be cleared
	// ([LaneLog.Reset]) and rebuilt from its ingress.
	ErrLogCorrupt = errors.New("log corrupt")
	// ErrLogClosed says that the log was closed.
	ErrLogClosed = errors.New("log closed")
)

// Durability says what an append waits for.
type Durability uint8

const (
	// Durable waits for one fsync: what was appended survives a crash of the machine.
	Durable Durability = iota
	// Replayed does not wait: the ingress still holds what is appended, and it would be read again.
	Replayed
)

// Log is the durable store of waiting messages of all lanes. Safe for concurrent use.
type Log interface {
	// Lane opens the lane's part of the log, empty if the log does not know it. Opening is cheap and
	// repeatable; all handles of a lane are the same.
	Lane(lane Lane) (LaneLog, error)

	// Append stores the messages of all entries, and moves each lane's checkpoint, in one atomic
	// batch. Storing a message again is harmless; of two with one position the one with the greater At
	// stays. After an error nothing of it may be assumed
	// stored; it can be tried again.
	Append(ctx context.Context, entries []Append, d Durability) error

	// FreeBytes returns the free space of the log's file system.
	FreeBytes() (uint64, error)

	// Close ends all use; later calls return [ErrLogClosed].
	Close() error
}

// Append is what one lane adds to the log in one batch.
type Append struct {
	Lane     LaneLog
	Messages []Message
	// Checkpoint is the offset up to which (not included) effects of the ingress are in the log with
	// this batch. A checkpoint below the stored one changes nothing.
	Checkpoint int64
}

// LaneState is what the log knows of a lane.
type LaneState struct {
	// From says that every unsettled message below that offset is in the log. It moves only when a
	// commit is settled, never while a lane is still reading again what is below.
	From int64
	// Checkpoint is the offset up to which effects are in the log; it may be ahead of From. 0 for a new
	// lane.
	Checkpoint int64
	// Confirmed is the last commit of this owner known to be in Kafka; Known is false where there never
	// was one since the lane was emptied (Confirmed then has the topic id alone, or nothing).
	Confirmed Commit
	Known     bool
}

// Budget bounds what one scan returns. A scan returns at least one message if there is one.
type Budget struct {
	Messages int
	Bytes    int
}

// LaneLog is one lane's part of the log. Scans and settling of one lane may run while others
// append; Settle and Reset of one lane must not run side by side.
type LaneLog interface {
	// State returns what the log knows of the lane.
	State() LaneState

	// Waiting returns how many messages of the lane are in the log. Cost: O(1).
	Waiting() int64

	// Scan returns the messages with after < position ≤ upTo in ascending order of position, at most
	// as many as budget allows, and whether more are left in that range. The messages' memory is the
	// caller's. Cost: one seek and the bytes returned.
	Scan(after, upTo Position, budget Budget) (msgs []Message, more bool, err error)

	// Next returns the first position above after; ok is false where there is none. Cost: one seek.
	Next(after Position) (p Position, ok bool, err error)

	// Dues calls visit, in ascending order, with each distinct due of messages with fromMs ≤ due ≤
	// toMs, until visit returns false. Cost: at most one seek a due, never one a message.
	Dues(fromMs, toMs int64, visit func(dueMs int64) bool) error

	// Where returns the At of the message at p; ok is false where there is none. Cost: one look-up.
	Where(p Position) (at int64, ok bool, err error)

	// Low returns an offset at or below the At of every message in the log that is not in leaving, and
	// at most next: the lane's low once leaving is settled. It may lag behind the truth by a block of
	// offsets, never lead it.
	Low(next int64, leaving []Message) (int64, error)

	// Settle records that c was committed: it becomes the confirmed commit, From becomes c.Next, and
	// everything at or below c.Cursor leaves the log. members are exactly the messages that leave, as scanned. One
	// atomic batch, not synced: a crash may forget it, and Forget then does it again when the lane is assigned.
	Settle(c Commit, members []Message) error

	// Forget drops what lies at or below cursor, which the lane's commit says is settled: what a crash
	// left behind, and what other owners delivered. State stays as it is. Cost: a scan of what it drops.
	Forget(cursor Position) error

	// Reset empties the lane; it will be rebuilt from c.Low on. From and Checkpoint become c.Low,
	// Confirmed keeps c's topic id alone, Known is false.
	Reset(c Commit) error
}
