package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// NewReceiver makes the Receiver of an admitted association. The Receiver also gets the
// messages that arrived before it existed. NewReceiver must not block.
type NewReceiver func(a assoc.Association) assoc.Receiver

// Assoc is an admitted SCTP association, the kernel's or one in UDP. Its Protection is
// released when it ends.
type Assoc struct {
	assoc.Association
	flows        []Flow
	prot         Protection
	recv         assoc.Receiver
	closeCarrier func() // closes its carrier and waits; may be called again

	protector Protector
	deadAfter time.Duration
}

// Flow returns the association's flow, the first path's if there are several.
func (a *Assoc) Flow() Flow { return a.flows[0] }

// Flows returns one flow for each path that the association may use.
func (a *Assoc) Flows() []Flow { return a.flows }

// Protection returns the protection of the association.
func (a *Assoc) Protection() Protection { return a.prot }

// PathMTU returns the size of the largest IP packets that get through, and a size that is
// lost although the route's MTU allows it; 0 means not known.
func (a *Assoc) PathMTU() (carries, lost int) {
	s := a.Stats()
	return s.PathMTU, s.LostMTU
}

// Screen asks the Protector again about an association that a peer set up: it may have
// been admitted just before its peer was removed. It fails if the Protector would refuse
// the flow now.
func (a *Assoc) Screen() error { return screen(a.protector, a.flows[0]) }

// SyscallConn gives access to the UDP socket that carries nothing but this association. It
// fails where there is none: that takes Config.OwnSockets.
func (a *Assoc) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := a.Association.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, flowError("use", a.flows[0], errors.ErrUnsupported)
}

// Ports returns the SCTP ports of both ends, which are not those of the flow where UDP carries the association.
func (a *Assoc) Ports() (local, peer uint16) {
	if s, ok := a.Association.(*sctp.Assoc); ok {
		return s.Ports()
	}
	return a.flows[0].Local.Port(), a.flows[0].Remote.Port()
}

// AbortPacket returns the packet by which another process may end an association in UDP in this
// one's name; nil where there is none.
func (a *Assoc) AbortPacket() []byte {
	if s, ok := a.Association.(*sctp.Assoc); ok {
		return s.AbortPacket()
	}
	return nil
}

// Receiver returns what NewReceiver made for the association.
func (a *Assoc) Receiver() assoc.Receiver { return a.recv }

// DeadAfter returns how long the peer may be silent before the association is given up.
func (a *Assoc) DeadAfter() time.Duration { return a.deadAfter }

// Shutdown ends the association gracefully (RFC 9260 section 9.2). It waits until ctx is
// done, then aborts the association and fails with ctx's error.
func (a *Assoc) Shutdown(ctx context.Context) error {
	err := a.Association.Shutdown(ctx)
	a.Close()
	return err
}

// Close aborts the association unless it has ended, and waits until nothing of it is
// left. It is idempotent. The Receiver must not call it: it uses Abort.
func (a *Assoc) Close() error {
	a.Association.Abort("")
	<-a.Done()
	a.closeCarrier()
	return nil
}

// DialSCTP is Endpoints.DialSCTP with nothing remembered for later associations. It fails
// as that does.
func DialSCTP(ctx context.Context, remote netip.AddrPort, cfg *Config, recv NewReceiver) (*Assoc, error) {
	return new(Endpoints).DialSCTP(ctx, remote, cfg, recv)
}

// DialSCTP sets up an association with remote, the address and SCTP port of the peer,
// over the carrier cfg.Kind. The Protector prepares its flows before the first packet and
// admits them before DialSCTP returns. It fails with ErrNoProtector or a *FlowError.
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

// admitted asks for the admission of the association's paths and opens its gate.
// closeCarrier closes what carries the association. On an error the association is
// aborted, but its carrier is left open.
func (g *gate) admitted(ctx context.Context, outgoing bool, newRecv NewReceiver, closeCarrier func()) (*Assoc, error) {
	a := &Assoc{Association: g.assoc, flows: g.flows, protector: g.cfg.Protector, deadAfter: g.cfg.deadAfter()}
	p := newPaths(g.ctx, a, outgoing, g.cfg)
	f, err := p.admit(ctx)
	if err == nil {
		a.prot, a.recv = p, newRecv(g.assoc)
		a.closeCarrier = func() {
			<-g.assoc.Done() // until its last packet is sent
			p.wg.Wait()
			closeCarrier()
		}
		if g.open(a.recv, p, func() { p.Release(); go a.closeCarrier() }) {
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

// cause strips the operation and address that FlowError states itself.
func cause(err error) error {
	if ae, ok := err.(*assoc.Error); ok {
		return ae.Err
	}
	return err
}

// params returns the parameters of associations over either carrier (RFC 9260 section
// 16).
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

// recvWindow returns the receive window of an association in bytes; 0 leaves it to the
// carrier.
func (c *Config) recvWindow() int {
	if c.RecvBuffer > 0 {
		return max(c.RecvBuffer, minRecvWindow)
	}
	return 0
}

// sctpConfig returns the configuration of an endpoint in UDP.
func (c *Config) sctpConfig() sctp.Config {
	return sctp.Config{Params: c.params(), MTU: c.MTU, SendBuffer: c.SendBuffer, RecvWindow: c.recvWindow()}
}

// udpPort returns the UDP port of listeners (RFC 6951 section 6.2).
func (c *Config) udpPort() uint16 { return cmp.Or(c.UDPPort, sctp.DefaultPort) }
