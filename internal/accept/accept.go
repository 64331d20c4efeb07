// Package accept is the loop of a server that accepts connections.
package accept

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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

// isTemporary reports whether others may free what accept had too little of.
func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS) || errors.As(err, &t) && t.Temporary()
}
