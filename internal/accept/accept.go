// Package accept is what servers that accept connections share.
package accept

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// Loop passes the connections that ln accepts to serve, which must not wait, until ctx ends or
// ln fails, and closes ln. It tries again, after a pause, what the machine has too few
// descriptors or too little memory for now. It returns nil when ctx has ended, and otherwise
// the error of ln. name is the server's, for errors and the log.
func Loop(ctx context.Context, ln net.Listener, name string, log *slog.Logger, serve func(net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	for pause := time.Duration(0); ; {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			serve(nc)
		case ctx.Err() != nil:
			return nil
		case isTemporary(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			log.Warn(name+": cannot accept a connection; trying again", "error", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			ln.Close()
			return fmt.Errorf("%s: accept on %v: %w", name, ln.Addr(), err)
		}
	}
}

// Serve calls serve, in a goroutine of its own, with each connection that Loop accepts and admit lets in; it
// closes the others. The context of serve ends when ctx ends or ln fails. Serve returns when each serve has.
// It fails as Loop does.
func Serve(ctx context.Context, ln net.Listener, name string, log *slog.Logger, admit func() bool, serve func(context.Context, net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	return Loop(ctx, ln, name, log, func(nc net.Conn) {
		if admit() {
			clients.Go(func() { serve(ctx, nc) })
		} else {
			nc.Close()
		}
	})
}

// Slots are places for connections. make(Slots, n) has n of them.
type Slots chan struct{}

// TryTake takes a place, and reports whether there was one.
func (s Slots) TryTake() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give gives a place back.
func (s Slots) Give() { <-s }

// isTemporary reports whether others may free what accept had too little of.
func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS) || errors.As(err, &t) && t.Temporary()
}
