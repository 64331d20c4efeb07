package transport

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// loop is one of this host's loopback addresses.
func loop(n byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, n}) }

// twoHomed are the settings of two ends with two addresses each.
func twoHomed(p Protector) (dialler, listener *Config) {
	return &Config{Kind: SCTP, Protector: p, Local: loop(1), MoreLocal: []netip.Addr{loop(2)}, MoreRemote: []netip.Addr{loop(4)}},
		&Config{Kind: SCTP, Protector: p, MoreLocal: []netip.Addr{loop(4)}}
}

func listenTwoHomed(t *testing.T, cfg *Config) *SCTPListener {
	t.Helper()
	l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(loop(3), linkPort), cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestAMultihomedAssociationOfTheKernelHasAFlowPerPath(t *testing.T) {
	needKernel(t)
	// Only the straight pairs are known to the Protector.
	known := func(f Flow) error {
		a, b := f.Local.Addr().As4()[3], f.Remote.Addr().As4()[3]
		if a+2 != b && b+2 != a {
			return ErrNotProtected
		}
		return nil
	}
	p := &screened{screen: known}
	d, s := twoHomed(p)
	a, b := meet(t, listenTwoHomed(t, s), d)
	if len(a.Flows()) != 2 || len(b.Flows()) != 2 {
		t.Fatalf("flows %v and %v", a.Flows(), b.Flows())
	}
	for _, f := range a.Flows() {
		if known(f) != nil || !slices.Contains(b.Flows(), Flow{ProtoSCTP, f.Remote, f.Local}) {
			t.Errorf("flow %v, the other end has %v", f, b.Flows())
		}
	}
	send(t, a, "on one of them")
	if got := texts(t, b.box(), 1)[0]; got != "on one of them" {
		t.Errorf("got %q", got)
	}
}

func TestAnAddressThatIsNotConfiguredIsRefused(t *testing.T) {
	needKernel(t)
	for _, tc := range []struct {
		name string
		more []netip.Addr
		ok   bool
	}{
		{"control", []netip.Addr{loop(4)}, true},
		{"one more than configured", nil, false},
		{"another one", []netip.Addr{loop(5)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, s := twoHomed(LoopbackOnly())
			d.MoreRemote = tc.more
			l := listenTwoHomed(t, s)
			a, err := DialSCTP(t.Context(), l.Addr(), d, inboxes)
			if err == nil {
				a.Close()
			}
			if (err == nil) != tc.ok || !tc.ok && !errors.Is(err, ErrNotProtected) {
				t.Errorf("DialSCTP: %v", err)
			}
		})
	}
	t.Run("of the dialler", func(t *testing.T) {
		d, s := twoHomed(LoopbackOnly())
		refused := make(chan error, 1)
		s.OnRefused = func(_ Flow, err error) { refused <- err }
		s.Protector = &screened{screen: func(f Flow) error {
			if f.Remote.Addr() == loop(2) {
				return ErrNotProtected
			}
			return nil
		}}
		l := listenTwoHomed(t, s)
		a, err := DialSCTP(t.Context(), l.Addr(), d, inboxes)
		if err == nil {
			defer a.Close()
		}
		if err := <-refused; !errors.Is(err, ErrNotProtected) {
			t.Errorf("refused: %v", err)
		}
		if a != nil {
			<-a.Done()
		}
	})
}

func TestAKernelListenerOnAllAddressesIsRefused(t *testing.T) {
	needKernel(t)
	_, s := twoHomed(LoopbackOnly())
	l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), linkPort), s, inboxes)
	if err == nil {
		l.Close()
		t.Fatal("it listens on addresses that nobody named")
	}
}
