package transport

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

func (c *Config) kernelConfig(es *Endpoints) ksctp.Config {
	return ksctp.Config{Params: c.params(), SendBuffer: c.SendBuffer, RecvBuffer: c.recvWindow(), Narrow: &es.narrow}
}

// dialKernel sets up an association with the kernel's SCTP. f is the flow of its first
// path as far as it is known.
func dialKernel(ctx context.Context, es *Endpoints, remote netip.AddrPort, f Flow, cfg *Config, recv NewReceiver) (*Assoc, error) {
	f, lo, hi, err := choosePorts(ctx, cfg.Protector, f)
	if err != nil {
		return nil, flowError("prepare", f, err)
	}
	flows, err := cfg.flowsTo(f, sockio.Source)
	if err != nil {
		return nil, flowError("dial", f, err)
	}
	kc := cfg.kernelConfig(es)
	for _, f := range flows {
		if !slices.Contains(kc.Local, f.Local.Addr()) {
			kc.Local = append(kc.Local, f.Local.Addr())
		}
	}
	var ready []netip.AddrPort
	var a *ksctp.Assoc
	dial, over := context.WithCancel(ctx)
	defer over()
	err = attempts(ctx, f, func() (err error) { ready, err = cfg.prepareAll(dial, flows); return err }, func() error {
		return eachPort(lo, hi, func(port uint16) (err error) {
			kc.Port = port
			a, err = ksctp.Dial(ctx, kc, ready...)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return cfg.dialled(ctx, a, flows, recv)
}

// listenKernel opens the kernel's socket of a listener.
func (l *SCTPListener) listenKernel(ctx context.Context, es *Endpoints) error {
	kc := l.cfg.kernelConfig(es)
	kc.Local, kc.Port = []netip.Addr{l.addr.Addr()}, l.addr.Port()
	for _, a := range l.cfg.MoreLocal {
		kc.Local = append(kc.Local, a.Unmap())
	}
	kc.Refused = func(remote netip.AddrPort, err error) {
		f := l.flow
		f.Remote = unmap(remote)
		l.cfg.refused(f, flowError("accept", f, cause(err)))
	}
	kl, err := ksctp.Listen(ctx, kc)
	if err != nil {
		return cause(err)
	}
	l.addr = unmap(kl.Addr())
	l.flow.Local = l.addr
	l.socket = kernelSocket{kl}
	l.wg.Go(func() {
		for {
			a, err := kl.Accept(l.ctx)
			if err != nil {
				return
			}
			l.accepted(a)
		}
	})
	return nil
}

// kernelSocket is the kernel's socket of a listener.
type kernelSocket struct{ *ksctp.Listener }

func (b kernelSocket) stop()  { b.Close() }
func (b kernelSocket) close() {}
