package delegate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// maxCalls bounds what a program has asked for at a time and was not told yet, or has not ended.
const maxCalls = 1 << 13

// Protector is what a Serving asks. Its calls are those of transport.Protector and transport.PortChooser; Admit's flow is
// what the kernel says of the socket.
type Protector interface {
	LocalPorts(ctx context.Context, f transport.Flow) (lo, hi uint16, err error)
	Prepare(ctx context.Context, f transport.Flow) error
	Admit(ctx context.Context, outgoing bool, s *Socket) (transport.Protection, error)
}

// Serving is one program's connection at the daemon.
type Serving struct {
	link *link
	by   Protector
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the fields below it
	calls map[uint64]context.CancelFunc
	flows map[uint64]*served
}

// served is a flow that was admitted.
type served struct {
	sock *Socket
	prot transport.Protection
}

// NewServing returns the daemon's end of a connection. What comes by it goes to trash.
func NewServing(conn *net.UnixConn, by Protector, trash *Trash) *Serving {
	return &Serving{link: &link{UnixConn: conn, trash: trash}, by: by, calls: map[uint64]context.CancelFunc{}, flows: map[uint64]*served{}}
}

// Tell tells the program what it may have. It fails with the connection's error.
func (s *Serving) Tell(t Terms) error { return s.link.send(&message{Op: opTerms, Terms: &t}, -1) }

// Close ends the connection, and Run.
func (s *Serving) Close() error { return s.link.Close() }

// Run answers the program until its connection ends. leaves reports, at the end, whether the flows go on without this
// daemon; otherwise they are shut down. It fails with what was wrong with the connection, or with what came by it; nil: the
// program has closed it.
func (s *Serving) Run(ctx context.Context, leaves func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	err := s.serve(ctx)
	s.link.Close()
	s.link.closeSockets()
	cancel()
	s.wg.Wait()
	s.mu.Lock()
	flows := s.flows
	s.flows = nil
	s.mu.Unlock()
	leave := leaves()
	for _, f := range flows {
		if !leave {
			f.sock.Shutdown()
		}
		f.end()
	}
	if isEnd(err) {
		return nil
	}
	return err
}

func (f *served) end() {
	f.prot.Release()
	f.sock.close()
}

func (s *Serving) serve(ctx context.Context) error {
	for {
		m, err := s.link.receive()
		if err != nil {
			return err
		}
		switch m.Op {
		case opDone:
			s.done(m.ID)
		case opPorts, opPrepare, opAdmit:
			var sock *Socket
			if m.Op == opAdmit {
				if sock = s.link.socket(); sock == nil {
					return errors.New("delegate: a flow is to be admitted without its socket")
				}
			}
			if err := s.begin(ctx, m, sock); err != nil {
				if sock != nil {
					sock.close()
				}
				return err
			}
		default:
			return fmt.Errorf("delegate: a message %q, which is none of this protocol", m.Op)
		}
	}
}

// begin has a call made. Its context ends with done, so that a call of Prepare lasts as long as the program dials.
func (s *Serving) begin(ctx context.Context, m message, sock *Socket) error {
	s.mu.Lock()
	_, busy := s.calls[m.ID]
	_, held := s.flows[m.ID]
	full := len(s.calls) >= maxCalls
	if !busy && !held && !full {
		ctx, s.calls[m.ID] = context.WithCancel(ctx)
	}
	s.mu.Unlock()
	switch {
	case busy || held:
		return errors.New("delegate: a call has the number of another one")
	case full:
		a := message{Op: opAnswer, ID: m.ID}
		a.fail(fmt.Errorf("%w: %d connections of this program are starting up", ErrShort, maxCalls))
		if sock != nil {
			sock.close()
		}
		return s.link.send(&a, -1)
	}
	s.wg.Go(func() { s.call(ctx, m, sock) })
	return nil
}

func (s *Serving) call(ctx context.Context, m message, sock *Socket) {
	a := message{Op: opAnswer, ID: m.ID}
	var err error
	switch m.Op {
	case opPorts:
		a.Low, a.High, err = s.by.LocalPorts(ctx, m.flow())
	case opPrepare:
		err = s.by.Prepare(ctx, m.flow())
	case opAdmit:
		err = s.admit(ctx, &a, m.Outgoing, sock)
	}
	if m.Op != opPrepare || err != nil {
		s.end(m.ID)
	}
	a.fail(err)
	_ = s.link.send(&a, -1) // if it fails the connection ends
}

func (s *Serving) admit(ctx context.Context, a *message, outgoing bool, sock *Socket) error {
	err := sock.identify()
	if err != nil {
		err = fmt.Errorf("%w: %w", transport.ErrNotProtected, err)
	}
	var p transport.Protection
	if err == nil {
		p, err = s.by.Admit(ctx, outgoing, sock)
	}
	if err != nil {
		sock.close()
		return err
	}
	a.Peer, a.Kind = string(p.Peer()), p.Kind()
	f := &served{sock, p}
	s.mu.Lock()
	over := ctx.Err() != nil
	if !over {
		s.flows[a.ID] = f
	}
	s.mu.Unlock()
	if over {
		f.end()
		return ctx.Err()
	}
	return nil
}

// done ends a call, or the protection of a flow.
func (s *Serving) done(id uint64) {
	s.end(id)
	s.mu.Lock()
	f := s.flows[id]
	delete(s.flows, id)
	s.mu.Unlock()
	if f != nil {
		f.end()
	}
}

func (s *Serving) end(id uint64) {
	s.mu.Lock()
	cancel := s.calls[id]
	delete(s.calls, id)
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// End shuts down the flows for which the daemon has a reason, and tells the program.
func (s *Serving) End(why func(*Socket) error) {
	s.mu.Lock()
	flows := maps.Clone(s.flows)
	s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(flows)) {
		f := flows[id]
		if err := why(f.sock); err != nil {
			f.sock.Shutdown()
			_ = s.link.send(&message{Op: opEnded, ID: id, Reason: err.Error()}, -1)
		}
	}
}
