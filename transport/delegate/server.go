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

const (
	// maxCalls bounds what the programs of an account have asked for at a time and were not told yet, or have not ended.
	maxCalls = 1 << 13
	// maxUntold bounds what a program is to be told and has not read.
	maxUntold = 1 << 14
)

// Protector is what a Serving asks. Its calls are those of transport.Protector and transport.PortChooser; Admit's flow is
// what the kernel says of the socket.
type Protector interface {
	LocalPorts(ctx context.Context, f transport.Flow) (lo, hi uint16, err error)
	Prepare(ctx context.Context, f transport.Flow) error
	Admit(ctx context.Context, outgoing bool, s *Socket) (transport.Protection, error)
}

// Serving is one program's connection at the daemon.
type Serving struct {
	link    *link
	by      Protector
	account *Account
	wg      sync.WaitGroup

	mu      sync.Mutex // guards the fields below it
	over    bool       // wg is waited for
	calls   map[uint64]context.CancelFunc
	flows   map[uint64]*served
	untold  []message
	telling bool
}

// served is a flow that was admitted.
type served struct {
	sock *Socket
	prot transport.Protection
	once sync.Once
}

// NewServing returns the daemon's end of a connection of a program of account.
func NewServing(conn *net.UnixConn, by Protector, account *Account) *Serving {
	return &Serving{link: &link{UnixConn: conn, account: account}, by: by, account: account, calls: map[uint64]context.CancelFunc{}, flows: map[uint64]*served{}}
}

// Tell tells the program what it may have, and does not wait for it.
func (s *Serving) Tell(t Terms) { s.tell(message{Op: opTerms, Terms: &t}) }

// tell has something sent after what is to be sent already. A program that does not read is cut off by send.
func (s *Serving) tell(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.untold = append(s.untold, m); len(s.untold) > maxUntold {
		s.link.Close()
	}
	if !s.telling {
		s.telling = true
		s.wg.Go(s.tellAll)
	}
}

func (s *Serving) tellAll() {
	for {
		s.mu.Lock()
		if len(s.untold) == 0 {
			s.telling, s.untold = false, nil
			s.mu.Unlock()
			return
		}
		m := s.untold[0]
		s.untold = s.untold[1:]
		s.mu.Unlock()
		_ = s.link.send(&m, -1) // if it fails the connection ends
	}
}

// Close ends the connection, and Run. It does not wait.
func (s *Serving) Close() { s.link.Close() }

// Run answers the program until its connection ends. leaves reports, at the end, whether the flows go on without this
// daemon; otherwise they are shut down, and waited for while ctx lasts. It fails with what was wrong with the connection, or
// with what came by it; nil: the program has closed it.
func (s *Serving) Run(ctx context.Context, leaves func() bool) error {
	calls, cancel := context.WithCancel(ctx)
	err := s.serve(calls)
	s.link.Close()
	s.link.closeSockets()
	cancel()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	flows := s.flows
	s.flows = nil
	s.mu.Unlock()
	leave := leaves()
	ends := map[*served]<-chan struct{}{}
	for _, f := range flows {
		if leave {
			f.release()
		} else {
			ends[f] = f.end()
		}
	}
	for f, ended := range ends {
		select {
		case <-ended:
		case <-ctx.Done(): // and with it soon the process
			f.release()
		}
	}
	if isEnd(err) {
		return nil
	}
	return err
}

// end shuts a flow down. Its protection, and what it counts, last until that is done.
func (f *served) end() <-chan struct{} {
	ended := f.sock.Shutdown()
	if isDone(ended) {
		f.release()
		return ended
	}
	released := make(chan struct{})
	go func() {
		<-ended
		f.release()
		close(released)
	}()
	return released
}

func (f *served) release() {
	f.once.Do(func() {
		f.prot.Release()
		f.sock.close()
	})
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
		case opReport:
			s.hear(m.Reports)
		case opPorts, opPrepare, opAdmit:
			var sock *Socket
			if m.Op == opAdmit {
				if sock = s.link.socket(); sock == nil {
					return errors.New("delegate: a flow is to be admitted without its socket")
				}
				sock.will = m.Will[:min(len(m.Will), maxWill)]
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
	full := !busy && !held && !s.account.begin()
	if !busy && !held && !full {
		ctx, s.calls[m.ID] = context.WithCancel(ctx)
	}
	s.mu.Unlock()
	switch {
	case busy || held:
		return errors.New("delegate: a call has the number of another one")
	case full:
		a := message{Op: opAnswer, ID: m.ID}
		a.fail(fmt.Errorf("%w: %d connections of this account are starting up", ErrShort, maxCalls))
		if sock != nil {
			sock.close()
		}
		return s.link.send(&a, -1)
	}
	s.wg.Go(func() {
		defer context.AfterFunc(ctx, s.account.end)
		s.call(ctx, m, sock)
	})
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
	if m.Op == opAdmit && err == nil && sock.isUDP() {
		sock.assoc.admitted(func(n *message) { n.ID = m.ID; s.tell(*n) })
	}
}

// hear takes a program's reports. Those of flows that are not there, by an error or as they have just ended, are of none.
func (s *Serving) hear(reports []report) {
	for _, r := range reports[:min(len(reports), maxReports)] {
		s.mu.Lock()
		f := s.flows[r.ID]
		s.mu.Unlock()
		if f != nil {
			f.sock.assoc.hear(r)
		}
	}
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
	f := &served{sock: sock, prot: p}
	s.mu.Lock()
	over := ctx.Err() != nil
	if !over {
		s.flows[a.ID] = f
	}
	s.mu.Unlock()
	if over {
		f.release()
		return ctx.Err()
	}
	return nil
}

// done ends a call, or a flow: one that is said to be over does not go on.
func (s *Serving) done(id uint64) {
	s.end(id)
	s.mu.Lock()
	f := s.flows[id]
	delete(s.flows, id)
	s.mu.Unlock()
	if f != nil {
		f.sock.isOver.Store(true)
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

// End shuts down the flows for which the daemon has a reason, and tells the program, for which it does not wait. An
// association is ended by the program first, so that its peer learns of it, and is shut down after EndTime whatever the
// program does.
func (s *Serving) End(why func(*Socket) error) {
	s.mu.Lock()
	flows := maps.Clone(s.flows)
	s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(flows)) {
		f := flows[id]
		if err := why(f.sock); err != nil {
			f.sock.Finish()
			s.tell(message{Op: opEnded, ID: id, Reason: err.Error()})
		}
	}
}
