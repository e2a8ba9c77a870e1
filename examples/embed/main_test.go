package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

func TestTheReminderArrivesWhenItIsDue(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = "sent to reminders\nemails got \"your trial ends today\" for ada\nafter 2s at least: true\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTheProgramEndsWhenItIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out stopper = func() { cancel() }
	if err := run(ctx, out); !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v, want %v", err, context.Canceled)
	}
}

// stopper stops the program when it prints.
type stopper func()

func (s stopper) Write(p []byte) (int, error) {
	s()
	return len(p), nil
}
