// Package pebblelog keeps waiting messages on disk: it is [bide.Log] on Pebble, a log-structured
// merge tree in the manner of LevelDB.
//
// # The store, format version 1
//
// A key begins with a byte that says what it is about; numbers in keys are big-endian, so that byte
// order is their order. A lane is known by a number, given out when it is first opened, never again.
//
//	┌────┐
//	│ 00 │                                       "bide" · version           format of the store
//	├────┼─────────────┬─────────┐
//	│ 01 │ partition 4 │ topic … │               lane number 4              dictionary
//	├────┼────────┬────┴─────────┘
//	│ 02 │ lane 4 │                              state (state.go)           what is settled
//	│ 03 │ lane 4 │                              mark (state.go)            what was read
//	├────┼────────┼───────┬──────────┐
//	│ 10 │ lane 4 │ due 8 │ offset 8 │           message (message.go)
//	├────┼────────┼───────┴──┬───────┴─┬───────┬──────────┐
//	│ 11 │ lane 4 │ length 2 │ id …    │ due 8 │ offset 8 │   empty        ids
//	├────┼────────┼─────────┬┴─────────┴───────┴──────────┘
//	│ 12 │ lane 4 │ block 8 │                    count, by merge (count.go)
//	└────┴────────┴─────────┘
//
// A lane's messages stand in the order in which they are delivered, so delivery is one ordered scan,
// and what was delivered leaves with one range delete.
//
// # A tree used as a queue
//
// Such a tree drowns in the tombstones of what it gave out, where every scan starts at the front and
// has to pass them. Three rules prevent it: ranges are deleted, not messages; each range begins where
// the last one ended, so that tombstones lie side by side and never on top of each other; and no scan
// begins below what was deleted.
//
// # What was not read is still there
//
// A lane's low, below which its ingress is no longer needed, asks for the smallest offset of messages
// ordered by due. An index of offsets would cost a write and a delete a message. Instead the log counts
// messages by blocks of 4096 offsets: a batch adds to one block or two, and the first block
// with a count bounds the low from below. Counts are merges, so nobody reads them to change them.
//
// # A store that cannot write
//
// Where Pebble cannot know what reached the disk (a failed sync, a failed manifest) it asks for the process to
// end, and is right: it must be opened anew to find out. [Log.Failed] tells so. Until the process ends every call returns
// [ErrFailed], and Pebble is left standing where it was.
package pebblelog
