package watchdog

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// firstBackoff and lastBackoff bound the pause before an auxiliary loop is started again: soon
	// enough to go unnoticed once, seldom enough not to fill the log.
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// ErrEnded says that a core loop returned without an error while it was still needed.
var ErrEnded = errors.New("ended although it was not asked to")

// PanicError is the panic of a loop.
type PanicError struct {
	Loop  string
	Value any
	// Stack is where it panicked, as runtime/debug prints it.
	Stack []byte
}

// Error names the loop and the panic's value.
func (e *PanicError) Error() string { return fmt.Sprintf("loop %s panicked: %v", e.Loop, e.Value) }

// Unwrap returns the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Guard calls fn and returns its error, or a [PanicError] where it panics.
func Guard(loop string, fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Loop: loop, Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// Group runs loops that belong together. The first core loop that ends with an error, or panics, ends
// them all.
type Group struct {
	group *errgroup.Group
	ctx   context.Context
	log   *zap.Logger
}

// NewGroup returns a group, and the context that its loops get: done when ctx is, or when a core loop
// ended.
func NewGroup(ctx context.Context, log *zap.Logger) (*Group, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &Group{group: group, ctx: ctx, log: log}, ctx
}

// Core runs a loop without which the process is of no use. An error, a panic or an end before the
// group's context is done ends the group.
func (g *Group) Core(loop string, fn func(ctx context.Context) error) {
	g.group.Go(func() error {
		err := Guard(loop, func() error { return fn(g.ctx) })
		var panicked *PanicError
		switch {
		case errors.As(err, &panicked):
			return err
		case err != nil:
			return fmt.Errorf("%s: %w", loop, err)
		case g.ctx.Err() == nil:
			return fmt.Errorf("%s: %w", loop, ErrEnded)
		}
		return nil
	})
}

// Auxiliary runs a loop that the others can do without for a while: whenever it ends before the
// group's context is done it is started again, after a pause that grows from one second to a minute
// and is short again once the loop has run for a minute.
func (g *Group) Auxiliary(loop string, fn func(ctx context.Context) error) {
	g.group.Go(func() error {
		pause := firstBackoff
		for {
			started := time.Now()
			err := Guard(loop, func() error { return fn(g.ctx) })
			if g.ctx.Err() != nil {
				return nil
			}
			if time.Since(started) >= lastBackoff {
				pause = firstBackoff
			}
			g.log.Warn("loop started again", zap.String("loop", loop), zap.Duration("pause", pause),
				zap.Error(err), stackOf(err))
			select {
			case <-g.ctx.Done():
				return nil
			case <-time.After(pause):
			}
			pause = min(2*pause, lastBackoff)
		}
	})
}

// Wait returns when all loops have, with the first error of a core loop.
func (g *Group) Wait() error { return g.group.Wait() }

// stackOf returns the stack of a panic as a field, or no field.
func stackOf(err error) zap.Field {
	var panicked *PanicError
	if errors.As(err, &panicked) {
		return zap.ByteString("stack", panicked.Stack)
	}
	return zap.Skip()
}
