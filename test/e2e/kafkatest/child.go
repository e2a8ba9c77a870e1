//go:build unix

package kafkatest

import (
	"os/exec"
	"strconv"
)

// Guard ends process pid with SIGKILL when this process ends in whatever way, so that a test that is
// killed or times out leaves nothing behind. The caller calls release once pid has ended by itself.
//
// A shell waits on a pipe whose other end is ours. A line tells it to leave, the end of the pipe that
// we are gone.
func Guard(pid int) (release func(), err error) {
	sh := exec.Command("sh", "-c", `read -r line || kill -9 "$1"`, "guard", strconv.Itoa(pid))
	pipe, err := sh.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := sh.Start(); err != nil {
		return nil, err
	}
	return func() {
		_, _ = pipe.Write([]byte("\n"))
		_ = pipe.Close()
		_ = sh.Wait()
	}, nil
}
