// Package kafka is Kafka as Bide needs it: what producers ask for in headers, and the cluster that the
// scheduler of package bide reads, commits and delivers through. kgo's types stay in here, but for the options
// that [Connection.Options] returns and the client that [EnsureTopics] is given.
//
//	Connection     brokers, TLS, SASL ──► options for every client
//	EnsureTopics   ingress and dead-letter topic: made, and checked for what would lose messages
//	Preflight      what would keep all of this from working, asked before a start
//	Contract       headers ──► due, target, or a reason for a dead letter; messages ──► records
//	Cluster        group member ──► lanes;  reader ──► batches;  transactions: records + commits
//
// Everything that a consumer of a target can tell, and what Kafka knows to be settled, is decided here:
// [HeaderTable] and [ReasonCodes] are the contract, and the metadata of the group's committed offsets carries
// the rest of a lane's commit as versioned text. docs/DESIGN.md has the protocol, §3, and the contract, §4.
package kafka
