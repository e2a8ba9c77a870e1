// Package bide delays Kafka messages: a record produced to an ingress topic with a delay header is
// kept in a durable log and republished to its target when it is due. Never lost, never early,
// exactly once, late by milliseconds.
//
// The package holds the words and the path: messages, lanes, and the Scheduler that takes records
// from a [Cluster], keeps them in a [Log], and delivers them. It knows neither Kafka's client nor
// the store: packages kafka and pebblelog implement the interfaces here, and cmd/sidecar wires them.
// docs/DESIGN.md tells the protocol.
package bide
