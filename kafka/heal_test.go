package kafka

import (
	"errors"
	"testing"
)

// The numbers are those of Java's String.hashCode.
func TestOffsetsPartitionIsThatOfKafka(t *testing.T) {
	for group, want := range map[string]int32{
		"":                   0,
		"a":                  97 % 50,
		"polygenelubricants": 0, // hashes to the least integer
		"hello":              99162322 % 50,
	} {
		if got := offsetsPartitionOf(group, 50).number; got != want {
			t.Errorf("%q: %d, want %d", group, got, want)
		}
	}
}

func TestAnOpenTransactionEndsAsItEnded(t *testing.T) {
	const p = 6
	known := ending{producer: p, epoch: 6, commit: true, bumps: true}
	for name, c := range map[string]struct {
		open  openTxn
		state txnState
		end   ending
		known bool
		two   bool
		want  ending
		err   error
	}{
		"committed":                    {openTxn{producer: p, epoch: 6}, txnState{"CompleteCommit", p, 7}, ending{}, false, true, known, nil},
		"aborted":                      {openTxn{producer: p, epoch: 6}, txnState{"CompleteAbort", p, 7}, ending{}, false, true, ending{p, 6, false, true}, nil},
		"committed, version 0":         {openTxn{producer: p, epoch: 6}, txnState{"CompleteCommit", p, 6}, ending{}, false, false, ending{p, 6, true, false}, nil},
		"its markers are written":      {openTxn{producer: p, epoch: 6}, txnState{"PrepareCommit", p, 7}, known, true, true, ending{}, errNotOver},
		"it is open":                   {openTxn{producer: p, epoch: 7}, txnState{"Ongoing", p, 7}, known, true, true, ending{}, errNotOver},
		"forgotten, remembered":        {openTxn{producer: p, epoch: 6}, txnState{"Empty", p, 8}, known, true, true, known, nil},
		"forgotten":                    {openTxn{producer: p, epoch: 6}, txnState{"Empty", p, 8}, ending{}, false, true, ending{}, errNoneKnows},
		"another one ended since":      {openTxn{producer: p, epoch: 4}, txnState{"CompleteCommit", p, 7}, ending{}, false, true, ending{}, errNoneKnows},
		"the next one is open already": {openTxn{producer: p, epoch: 6}, txnState{"Ongoing", p, 7}, known, true, true, known, nil},
	} {
		got, err := howEnded(c.open, c.state, c.end, c.known, c.two)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, c.want, c.err)
		}
	}
}
