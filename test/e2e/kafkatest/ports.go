//go:build unix

package kafkatest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below the range that systems give to outgoing connections (from 32768 on Linux, 49152
// elsewhere). Inside that range a client that tries again and again to reach a stopped server on its
// own machine can be given that very port for its own end, and is then connected to itself; and the
// server could not have its port back.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreePort returns a port of 127.0.0.1 on which nothing listens now, and which no outgoing connection
// gets by itself.
func FreePort() (int, error) {
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", Loopback(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port, nil
	}
	return 0, fmt.Errorf("no free port in %d…%d after 200 tries", firstPort, lastPort)
}

// Loopback returns the address of a port on 127.0.0.1.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
