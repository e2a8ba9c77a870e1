// Command sidecar delivers delayed messages of Apache Kafka: it consumes delay-ingress topics, keeps what
// waits, and produces each message to its target when it is due.
//
//	sidecar run       against a cluster
//	sidecar check     names all that would keep run from working
//	sidecar dev       with a broker of its own, to try things out
//	sidecar demo      sends messages through it and reports what became of them
//
// Exit codes: 0 for a clean stop, 1 for a fault, 2 for a bad configuration or command line.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the image has no time zones
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2) // the second must not get lost while the first is handled
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "sidecar: second signal: ending at once; what was in flight is settled by the next start")
		os.Exit(exitFault)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
