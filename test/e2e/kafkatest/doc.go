// Package kafkatest runs real Apache Kafka brokers for tests: one node in KRaft mode on the loopback
// interface, from Maven Central's jars, with the Java that is installed.
//
//	Start ─► Jars(version) ─► mvn dependency:copy-dependencies   once a version, in the user's cache
//	      ─► StorageTool format                                  once a broker
//	      ─► kafka.Kafka server.properties                       until Stop, again at Restart
//
// A broker costs about 3 s to start and 400 MB of memory, the first one of a version also the 60 MB
// that Maven downloads. Nothing listens outside of 127.0.0.1.
package kafkatest
