package bide

import (
	"context"
	"errors"
	"time"
)

// Errors of a [Cluster].
var (
	// ErrFenced says that another process has this instance id. Nothing more may be done by this one.
	ErrFenced = errors.New("instance id in use by another process")
	// ErrStaleMembership says that the group coordinator refused a commit, since the membership that it
	// was made with is no longer valid: it is renewed soon, or the lane is somebody else's.
	ErrStaleMembership = errors.New("group membership is stale")
	// ErrIngressReplaced says that a lane's ingress is not what it was when reading began: deleted and
	// created again, or without its end. Reading does not go on by itself: the lane starts anew.
	ErrIngressReplaced = errors.New("ingress replaced")
	// ErrForeignCommit says that a lane's committed metadata was not written by Bide, or is empty.
	ErrForeignCommit = errors.New("committed metadata is not Bide's")
	// ErrCommitVersion says that a lane's committed metadata is of a version this release cannot read.
	ErrCommitVersion = errors.New("committed metadata is of an unknown version")
)

// Commit is what Kafka knows to be settled in a lane: the group's committed offset and its metadata.
// An accepted message (offset < Next) is settled if its offset < Low or its position ≤ Cursor.
type Commit struct {
	Next   int64
	Cursor Position
	Low    int64
	// Rules are the settings that decide due, each with the offset from which it holds.
	Rules []RuleSpan
	// Writer says who committed this, and in which plan.
	Writer Writer
	// TopicID identifies the ingress topic across deletion and creation under the same name.
	TopicID [16]byte
	// Lanes is how many partitions the ingress topic had.
	Lanes int32
}

// Writer identifies a plan: who wrote a commit. Two commits with the same writer are the same commit.
type Writer struct {
	// Instance is the static member id of the process that wrote; its transactional ids derive from it.
	Instance string
	// Incarnation is random for each start of a process.
	Incarnation uint64
	// Plan counts the plans of an incarnation, from 1.
	Plan uint64
}

// Membership is a proof of ownership, captured by a lane when it was assigned: a commit made with a
// membership that is no longer valid is refused by the group coordinator.
type Membership struct {
	Member     string
	Generation int32
}

// Owner is told by the group which lanes are its own.
type Owner interface {
	// Assigned adds lanes, and renews the membership of all lanes that were kept. added may be empty.
	// It does not block.
	Assigned(m Membership, added []Lane)
	// Revoked takes lanes away. It returns when no transaction of theirs is undecided, or ctx is done.
	Revoked(ctx context.Context, lanes []Lane)
	// Lost takes lanes away that somebody else may have by now. It does not block.
	Lost(lanes []Lane)
}

// Batch is what was read from a lane: records in ascending order of offset, with gaps where the
// ingress has control records or aborted ones. Records of one Start come in order and without loss.
type Batch struct {
	Lane Lane
	// Epoch is that of the Start that the records belong to.
	Epoch   uint64
	Records []Record
	// Seen is the offset that reading has passed, transaction markers and aborted records included: 0, or
	// greater than the last record's. A batch may have it alone.
	Seen int64
	// Err says why the lane cannot be read at present, with no records. Reading goes on by itself, but
	// for [ErrIngressReplaced].
	Err error
	// OutOfRange says that the lane was to be read from an offset below its log start; reading goes on
	// at Start, which the ingress has as its first offset. Nothing is skipped in silence.
	OutOfRange bool
	Start      int64
}

// LaneFacts is what Kafka says of an ingress partition.
type LaneFacts struct {
	TopicID [16]byte
	Lanes   int32
	// Start and End are the first offset, and the one after the last (the high watermark).
	Start, End int64
	// First is the timestamp of the first record, zero where there is none.
	First time.Time
	// OtherCommits says that the group has a commit for some other lane of the topic.
	OtherCommits bool
	// KnownLanes is the greatest lane count that a commit of the topic names; 0 without one.
	KnownLanes int32
}

// FateKind is what a plan does with a message.
type FateKind uint8

const (
	// Deliver produces the message to its target.
	Deliver FateKind = iota
	// DeadLetter produces it to the dead-letter topic with a reason.
	DeadLetter
	// Requeue produces it to its own lane again, due later.
	Requeue
	// Carry produces a copy of a message that goes on waiting to the end of its lane, so that the record
	// it was in may go.
	Carry
	// Leave produces nothing, and leaves the message waiting: it was to be carried and could not be.
	Leave
)

// Fate is what a plan does with a message. It may differ between attempts at one plan.
type Fate struct {
	Kind FateKind
	// Rejection is the reason of a dead letter.
	Rejection *Rejection
	// UntilMs is the new due of a requeued message; Attempt counts its deliveries tried, from 1.
	UntilMs int64
	Attempt int
	// Alone asks that the record be sent in a batch of its own: a batch that held it was refused.
	Alone bool
}

// Item is a message in a plan.
type Item struct {
	Message
	Fate Fate
}

// Plan is a lane's part of one transaction: what is produced, and the commit that accounts for it.
type Plan struct {
	Lane Lane
	// Previous is the commit before, Commit the one that this plan makes.
	Previous, Commit Commit
	Items            []Item
}

// Outcome is what became of a plan.
type Outcome uint8

const (
	// Aborted says that nothing of the plan is visible, and the commit before it stands: run it again.
	Aborted Outcome = iota
	// Committed says that the plan is in Kafka.
	Committed
	// Taken says that neither the plan nor the commit before it stands: another owner wrote.
	Taken
)

// FailureKind sorts what can go wrong with one item.
type FailureKind uint8

const (
	// Unavailable says that the target could not be written for now, while the cluster could be reached.
	Unavailable FailureKind = iota
	// Refused says that the target will never take the record.
	Refused
	// Suspect says that a batch with the record in it was refused: the record alone may be taken.
	Suspect
)

// Failure says what was wrong with one item of a plan.
type Failure struct {
	Item int
	Kind FailureKind
	// Rejection is the reason, should the item become a dead letter.
	Rejection *Rejection
}

// Result is what became of a plan, and which of its items stood in the way.
type Result struct {
	Outcome  Outcome
	Failures []Failure
	// Err is the fault behind an outcome other than Committed, for the log.
	Err error
}

// Cluster is what the scheduler needs of Kafka. Safe for concurrent use, but for Poll, which one
// goroutine calls.
type Cluster interface {
	// Join is a member of the group until ctx is done, and tells owner what it owns. It retries what
	// can be retried and returns nil when ctx is done, [ErrFenced], or a fault that a human must mend.
	Join(ctx context.Context, owner Owner) error

	// Facts asks what the lane's partition looks like now.
	Facts(ctx context.Context, lane Lane) (LaneFacts, error)

	// Committed returns the lane's commit, once no transaction leaves it open: it ends those of a dead
	// owner itself. found is false where there is none. Errors: [ErrForeignCommit] (c then has Next
	// alone), [ErrCommitVersion], ctx's; everything else is retried.
	Committed(ctx context.Context, lane Lane) (c Commit, found bool, err error)

	// Start reads the lane from an offset on, not paused; batches carry epoch. Stop ends it. Pause keeps the place
	// and returns no further batch until Resume. All take effect before the next Poll returns.
	Start(lane Lane, from int64, epoch uint64)
	Stop(lane Lane)
	Pause(lane Lane)
	Resume(lane Lane)

	// Poll waits for records and returns at most maxRecords of them, read committed.
	Poll(ctx context.Context, maxRecords int) ([]Batch, error)

	// ReadAt returns at most maxRecords records of the lane from an offset on, read committed, apart from
	// what Start reads; none where the lane has none, or none within a short time.
	ReadAt(ctx context.Context, lane Lane, from int64, maxRecords int) ([]Record, error)

	// Trim deletes the lane's records below an offset.
	Trim(ctx context.Context, lane Lane, below int64) error

	// Transact runs the plans of different lanes, all assigned under m, in one transaction, and returns
	// one result a plan, in their order. It returns when the outcome is known, however long that takes;
	// where ctx ends first, it aborts. In at-least-once mode records are produced, then commits made;
	// there an Aborted plan may have produced.
	Transact(ctx context.Context, m Membership, plans []*Plan) []Result
}

// Pulse is how a loop shows that it makes progress: Work when it starts a step, Rest when it waits
// for something to happen. A watchdog ends a process whose loop works at one step for too long.
type Pulse interface {
	Work()
	Rest()
}
