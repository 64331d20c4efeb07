package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// NewReceiver makes what takes the messages of an association that was admitted,
// those included which came meanwhile. It must not block.
type NewReceiver func(a assoc.Association) assoc.Receiver

// Assoc is an admitted SCTP association, of the kernel or in UDP. Its Protection
// is released when it is over.
type Assoc struct {
	assoc.Association
	flows []Flow
	prot  Protection
	recv  assoc.Receiver
	below func() // closes what carries it; may be called again, and waits

	protector Protector
	deadAfter time.Duration
}

// Flow is the association's flow, or the first of several paths.
func (a *Assoc) Flow() Flow { return a.flows[0] }

// Flows has one flow for each path that the association may use.
func (a *Assoc) Flows() []Flow { return a.flows }

// Protection is what the association lives under.
func (a *Assoc) Protection() Protection { return a.prot }

// PathMTU is how long IP packets of the association are at most, and which length
// gets lost although the route has it; 0 is not known.
func (a *Assoc) PathMTU() (carries, lost int) {
	s := a.Stats()
	return s.PathMTU, s.LostMTU
}

// Screen asks the Protector once more about an association that a peer has set up: it
// may have been admitted just before its peer was removed. The error says that it would
// be refused by now.
func (a *Assoc) Screen() error { return screen(a.protector, a.flows[0]) }

// Receiver is what NewReceiver made for the association.
func (a *Assoc) Receiver() assoc.Receiver { return a.recv }

// DeadAfter is how long the peer may be silent before the association is given
// up.
func (a *Assoc) DeadAfter() time.Duration { return a.deadAfter }

// Shutdown ends the association gracefully (RFC 9260 section 9.2) and waits for
// that until ctx is over; then it is aborted. It fails with ctx's error then.
func (a *Assoc) Shutdown(ctx context.Context) error {
	err := a.Association.Shutdown(ctx)
	a.Close()
	return err
}

// Close aborts the association if it is not over, and waits until nothing of it
// is left. It is idempotent. It must not be called by the Receiver, whose way is
// Abort.
func (a *Assoc) Close() error {
	a.Association.Abort("")
	<-a.Done()
	a.below()
	return nil
}

// DialSCTP is Endpoints.DialSCTP where nothing is remembered for the next association.
// It fails as that does.
func DialSCTP(ctx context.Context, remote netip.AddrPort, cfg *Config, recv NewReceiver) (*Assoc, error) {
	return new(Endpoints).DialSCTP(ctx, remote, cfg, recv)
}

// DialSCTP sets up an association with remote, the address and SCTP port of the
// peer, by the carrier cfg.Kind. The Protector prepares its flows before the first
// packet and admits them before DialSCTP returns. Errors are *FlowError, except
// ErrNoProtector.
func (es *Endpoints) DialSCTP(ctx context.Context, remote netip.AddrPort, cfg *Config, recv NewReceiver) (*Assoc, error) {
	if cfg == nil || cfg.Protector == nil {
		return nil, ErrNoProtector
	}
	remote = unmap(remote)
	f := Flow{Protocol: cfg.Kind.Protocol(), Remote: remote}
	if cfg.Local.IsValid() {
		f.Local = netip.AddrPortFrom(cfg.Local.Unmap(), 0)
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, flowError("dial", f, errors.New("the remote address or port is missing"))
	}
	switch cfg.Kind {
	case SCTPUDP:
		return dialUDP(ctx, remote, f, cfg, recv)
	case SCTP:
		return dialKernel(ctx, es, remote, f, cfg, recv)
	}
	return nil, flowError("dial", f, errNotSCTP)
}

var errNotSCTP = errors.New("Config.Kind says tcp: that is for Dial and Listen")

// admit asks the Protector about a flow.
func (c *Config) admit(ctx context.Context, f Flow, outgoing bool, m Monitored) (Protection, error) {
	ctx, cancel := context.WithTimeout(ctx, c.admitTimeout())
	defer cancel()
	p, err := c.Protector.Admit(ctx, f, outgoing, m)
	if err == nil && p == nil {
		err = ErrNotProtected
	}
	return p, err
}

// admitted has the paths of an association admitted and opens its gate. below
// closes what carries the association. After an error the association is
// aborted, and what carries it is not closed.
func (g *gate) admitted(ctx context.Context, outgoing bool, newRecv NewReceiver, below func()) (*Assoc, error) {
	a := &Assoc{Association: g.assoc, flows: g.flows, protector: g.cfg.Protector, deadAfter: g.cfg.deadAfter()}
	p := newPaths(g.ctx, a, outgoing, g.cfg)
	f, err := p.admit(ctx)
	if err == nil {
		a.prot, a.recv = p, newRecv(g.assoc)
		a.below = func() {
			<-g.assoc.Done() // its last packet has left
			p.wg.Wait()
			below()
		}
		if g.open(a.recv, p, func() { p.Release(); go a.below() }) {
			if g.start != nil {
				g.start()
			}
			return a, nil
		}
	}
	wasOver := g.ctx.Err() != nil
	p.Release()
	g.assoc.Abort("not admitted")
	<-g.assoc.Done()
	p.wg.Wait()
	g.cancel()
	if wasOver {
		err = fmt.Errorf("the association ended meanwhile: %w", cmp.Or(g.assoc.Err(), assoc.ErrShutdown))
	}
	return nil, flowError("admit", f, err)
}

// bare takes off what FlowError says itself.
func bare(err error) error {
	if ae, ok := err.(*assoc.Error); ok {
		return ae.Err
	}
	return err
}

// params are those of associations by either carrier (RFC 9260 section 16).
func (c *Config) params() assoc.Params {
	return assoc.Params{
		Adaptation:     adaptationDDP,
		RTOInitial:     assocRTOInitial,
		RTOMax:         maxRTO,
		Heartbeat:      assocHeartbeat,
		DeadAfter:      c.deadAfter(),
		PathMaxRetrans: pathTries - 1,
		Backlog:        c.maxPending(),
	}
}

// recvWindow is how much of an association may wait to be received, in bytes, 0: the
// carrier decides.
func (c *Config) recvWindow() int {
	if c.RecvBuffer > 0 {
		return max(c.RecvBuffer, minRecvWindow)
	}
	return 0
}

// sctpConfig is that of an endpoint in UDP.
func (c *Config) sctpConfig() sctp.Config {
	return sctp.Config{Params: c.params(), MTU: c.MTU, SendBuffer: c.SendBuffer, RecvWindow: c.recvWindow()}
}

// udpPort is the UDP port of listeners (RFC 6951 section 6.2).
func (c *Config) udpPort() uint16 { return cmp.Or(c.UDPPort, sctp.DefaultPort) }
