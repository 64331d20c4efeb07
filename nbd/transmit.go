package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// ErrNoExport means that a server has no export of a name.
var ErrNoExport = errors.New("nbd: there is no export of that name")

// Info is what a client hears of an export when it negotiates.
type Info struct {
	Size      uint64 // bytes
	BlockSize uint32 // requests are multiples of it, in bytes
	Flags     uint16 // transmission flags, without those of structured replies
}

// Info returns what a client of Transmit has to know of an export. It fails with
// ErrNoExport.
func (s *Server) Info(name string) (Info, error) {
	e := s.lookup(name)
	if e == nil {
		return Info{}, fmt.Errorf("export %q: %w", name, ErrNoExport)
	}
	g := geometry(e.device.Geometry()).withDefaults()
	return Info{g.Size, g.MinBlock, g.transmissionFlags(features{})}, nil
}

// Transmit serves one client that does not negotiate, as Linux' driver, which is told
// by its own ways what Info says: transmission begins with the connection's first byte, with
// simple replies. It closes nc and returns as a connection of Serve ends: when the client
// has disconnected or hung up, which is no error, or when ctx ends. It fails with
// ErrNoExport, and with what ended the connection otherwise.
func (s *Server) Transmit(ctx context.Context, nc net.Conn, name string) error {
	c := newConn(s, nc)
	c.done = ctx.Done()
	defer nc.Close()
	e := s.lookup(name)
	if e == nil {
		return fmt.Errorf("export %q: %w", name, ErrNoExport)
	}
	c.chooseExport(e, geometry(e.device.Geometry()).withDefaults())
	defer c.stopDrainTimer()
	defer context.AfterFunc(ctx, c.beginDrain)()
	return c.transmit(ctx)
}
