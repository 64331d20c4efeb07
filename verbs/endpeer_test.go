package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

// leaving is a Protector whose peer is removed while it is being admitted.
type leaving struct {
	transport.Protector
	outgoing bool // of the flow during whose admission that happens
	removed  atomic.Bool
	cut      func()
}

func (p *leaving) Admit(ctx context.Context, f transport.Flow, outgoing bool, m transport.Monitored) (transport.Protection, error) {
	prot, err := p.Protector.Admit(ctx, f, outgoing, m)
	if err == nil && outgoing == p.outgoing {
		p.removed.Store(true)
		p.cut()
	}
	return prot, err
}

func (p *leaving) Screen(f transport.Flow) error {
	if p.removed.Load() {
		return fmt.Errorf("%w: the peer was removed", transport.ErrNotProtected)
	}
	return nil
}

// TestAssociationDoesNotEscapeTheEndOfItsPeer: it is admitted when its peer is removed,
// and no device has it yet.
func TestAssociationDoesNotEscapeTheEndOfItsPeer(t *testing.T) {
	for _, outgoing := range []bool{false, true} {
		t.Run(fmt.Sprint("outgoing: ", outgoing), func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			plain := iwarptest.SCTPInUDP(t)
			a.tc, b.tc = plain, plain
			e := b
			if outgoing {
				e = a
			}
			own := *plain
			own.Protector = &leaving{Protector: plain.Protector, outgoing: outgoing, cut: func() { e.dev.EndAssociations("loopback", "the peer was removed") }}
			e.tc = &own
			ln := listen(t, b, ListenConfig{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					r, err := ln.Accept(t.Context())
					if err != nil {
						return
					}
					// That the association is over may show here first.
					if _, err := r.Accept(t.Context(), b.pd, AcceptConfig{QP: b.cfg}); err == nil && !outgoing {
						t.Error("a stream is accepted from a peer that was removed")
					}
				}
			})
			t.Cleanup(wg.Wait)
			t.Cleanup(func() { ln.Close() })
			if _, err := a.dial(sctpLocal); err == nil {
				t.Error("a stream is set up with a peer that was removed")
			}
			e.dev.wantAssociations(t, 0)
		})
	}
}
