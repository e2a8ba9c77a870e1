// Package sim runs the whole of Bide in one process and in virtual time, and has everything go wrong
// that can: a scheduler, its log on a file system that forgets what was not synced, and Kafka's client
// against an embedded cluster, one to three instances of them, with producers, kills, lost disks, frozen
// processes, moved partitions, refused and unanswered requests, and clocks that are set. All is drawn from
// a seed. Then faults end, time goes on, and a checker compares what a read-committed consumer sees
// with what was produced:
//
//	a message is never lost, never early, and there once (at-least-once mode: at most once an attempt)
//	messages of a lane with one due are in the order of their offsets
//	the commits say of each message what is true, while instances are dead and at the end
//	nothing waits in a log, and low = next, once nothing waits
//
//	go test -count=1 ./test/sim                                     the fixed seeds and a fresh one
//	go test ./test/sim -run Simulation -sim.runs 1000 -sim.seed 1   seeds 1 … 1000
//	go test ./test/sim -run Simulation -sim.seed 17 -sim.log        seed 17, with its log
//
// What a seed decides: the settings, what is produced and when, and each fault and its moment. What it does
// not: the order in which goroutines that are ready at one virtual moment run, random numbers that the
// client, the embedded cluster and Bide draw themselves (jitter, member ids, leaders after a shuffle), and the order of
// Go's maps. So a seed that fails may pass the next time: run it again some times with -sim.repeat.
//
// The simulation is built with the tag synctests, which the Kafka client knows; without it the test builds and
// runs itself with it.
//
// The embedded cluster answers as a broker does, but knows no replication and writes no markers late:
// package e2e has what hangs on that, on real brokers.
package sim
