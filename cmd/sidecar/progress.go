package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bide-mq/bide/cmd/sidecar/internal/demo"
)

const (
	// On a terminal one line is drawn again and again; elsewhere a line is written now and then.
	drawEvery  = 100 * time.Millisecond
	writeEvery = time.Second
)

// progressWriter tells a human how far a demo is.
type progressWriter struct {
	out      io.Writer
	terminal bool
}

func newProgressWriter(out io.Writer) *progressWriter {
	p := &progressWriter{out: out}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progressWriter) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// draw tells of progress until ctx is done.
func (p *progressWriter) draw(ctx context.Context, load demo.Load, progress func() demo.Progress) {
	every, begin, end := writeEvery, "", "\n"
	if p.terminal {
		every, begin, end = drawEvery, "\r\x1b[K", ""
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	line := func() {
		now := progress()
		fmt.Fprintf(p.out, "%ssent %d of %d, waiting %d, delivered %d, late at most %.1f ms%s",
			begin, now.Sent, load.Messages, max(0, now.Sent-now.Delivered), now.Delivered, now.MaxLateMs, end)
	}
	for {
		select {
		case <-ctx.Done():
			line()
			if p.terminal {
				fmt.Fprintln(p.out)
			}
			return
		case <-tick.C:
			line()
		}
	}
}
