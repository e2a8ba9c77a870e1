package wheel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios plays the files of testdata, each a story of one wheel:
//
//	new [start=N]                  a new wheel
//	add at=N <name>…               a timer for each name
//	cancel <name>                  prints whether it did
//	reset at=N <name>              prints whether it did
//	advance now=N [limit=N]        prints the names delivered, and "more" where there is more to do
//	next, stats, clear
//
// Together they prevent: equal deadlines that overtake each other, by whichever wheel they came; a
// coarse bucket that hides an earlier fine one; a timer at exactly one turn that comes a turn late
// or at once; a timer added into the bucket that is being emptied which is lost or comes a turn
// late.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		var w *Wheel[string]
		ids := map[string]ID{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var at, limit int64
			d.MaybeScanArgs(t, "at", &at)
			d.MaybeScanArgs(t, "limit", &limit)
			var names []string
			for _, arg := range d.CmdArgs {
				if len(arg.Vals) == 0 {
					names = append(names, arg.Key)
				}
			}
			switch d.Cmd {
			case "new":
				d.MaybeScanArgs(t, "start", &at)
				w, ids = New[string](Tick(at)), map[string]ID{}
			case "add":
				for _, name := range names {
					ids[name] = w.Add(Tick(at), name)
				}
			case "cancel":
				v, ok := w.Cancel(ids[names[0]])
				return fmt.Sprintf("%q %v\n", v, ok)
			case "reset":
				return fmt.Sprintln(w.Reset(ids[names[0]], Tick(at)))
			case "advance":
				d.ScanArgs(t, "now", &at)
				out, more := w.Advance(Tick(at), int(limit), nil)
				if more {
					out = append(out, "(more)")
				}
				inspect(t, w)
				return fmt.Sprintf("%d: %s\n", w.Now(), strings.Join(out, " "))
			case "next":
				next, ok := w.Next()
				return fmt.Sprintln(next, ok)
			case "stats":
				s := w.Stats()
				return fmt.Sprintf("timers %d, overflow wheels %d, cascades %d, expired %d, cancelled %d\n",
					s.Timers, s.OverflowWheels, s.Cascades, s.Expired, s.Cancelled)
			case "clear":
				w.Clear()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return ""
		})
	})
}
