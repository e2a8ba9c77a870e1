// Package e2e holds no code but tests: the real binary as a process of its own, against kfake in the
// test's process and against Apache Kafka 4.4.0 and 3.9.1 (package kafkatest).
//
//	producer (load) ─► ingress ─► sidecar process ─► target ─► read-committed consumer (checker)
//	       └───────────────── ledger: what was sent, due when; what came, when ───────┘
//
// Each test has topics, a group and a data directory of its own; the brokers are shared, but where a
// test stops one. What takes minutes runs with -e2e.long alone:
//
//	go test ./test/e2e                                   # a minute; the real brokers where Java is there
//	go test ./test/e2e -e2e.long -timeout 15m            # everything, as CI does
//	go test ./test/e2e -run TestKill -e2e.long -v        # one claim
package e2e
