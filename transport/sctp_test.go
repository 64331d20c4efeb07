package transport

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// inbox is a Receiver that keeps what it gets.
type inbox struct {
	mu     sync.Mutex
	cond   sync.Cond
	got    []string
	events []sctp.EventKind
}

func newInbox() *inbox {
	i := &inbox{}
	i.cond.L = &i.mu
	return i
}

func (i *inbox) Message(m *sctp.Message) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.got = append(i.got, string(m.Payload))
	i.cond.Broadcast()
	return false
}

func (i *inbox) Event(e sctp.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.events = append(i.events, e.Kind)
	i.cond.Broadcast()
}

func (i *inbox) BatchEnd() {}

// messages waits for n of them.
func (i *inbox) messages(n int) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.got) < n {
		i.cond.Wait()
	}
	return i.got
}

func (i *inbox) last(k sctp.EventKind) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.events) == 0 || i.events[len(i.events)-1] != k {
		i.cond.Wait()
	}
}

func inboxes(sctp.Association) sctp.Receiver { return newInbox() }

// udpConfig is a Config for SCTP in UDP with a UDP port that is free on loopback.
func udpConfig(t *testing.T, p Protector) *Config {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return &Config{Protector: p, Kind: SCTPUDP, UDPPort: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
}

// with is a Config like c but with another Protector.
func with(c *Config, p Protector) *Config {
	d := *c
	d.Protector = p
	return &d
}

const linkPort = 7471

func listenSCTP(t *testing.T, cfg *Config) *SCTPListener {
	t.Helper()
	l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(loopbackAny.Addr(), linkPort), cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// associate dials and accepts one association.
func associate(t *testing.T, ccfg, scfg *Config) (client, server *Assoc) {
	t.Helper()
	l := listenSCTP(t, scfg)
	client, err := DialSCTP(t.Context(), l.Addr(), ccfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func send(t *testing.T, a *Assoc, text string) {
	t.Helper()
	if err := a.SendNow(sctp.Outgoing{PPID: 16, Bufs: [][]byte{[]byte(text)}}); err != nil {
		t.Fatal(err)
	}
}

func (a *Assoc) box() *inbox { return a.Receiver().(*inbox) }

func TestAnAssociationInUDPCarriesMessages(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	a, b := associate(t, cfg, cfg)
	send(t, a, "there")
	send(t, b, "back")
	if got := b.box().messages(1); got[0] != "there" {
		t.Errorf("got %q", got)
	}
	if got := a.box().messages(1); got[0] != "back" {
		t.Errorf("got %q", got)
	}
	fa, fb := a.Flow(), b.Flow()
	if fa.Protocol != ProtoUDP || fa.Local != fb.Remote || fa.Remote != fb.Local || fa.Remote.Port() != cfg.UDPPort || fa.Local.Port() == cfg.UDPPort {
		t.Errorf("flows %v and %v", fa, fb)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	b.box().last(sctp.EventDown)
}

func TestShutdownOfAnAssociationReleasesBothProtections(t *testing.T) {
	var pc, ps counted
	admit := func(c *counted) *fake {
		return &fake{admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return c, nil }}
	}
	cfg := udpConfig(t, nil)
	a, b := associate(t, with(cfg, admit(&pc)), with(cfg, admit(&ps)))
	if pc.released()+ps.released() != 0 {
		t.Fatal("released early")
	}
	if err := b.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	<-a.Done()
	a.Close()
	b.Close()
	if pc.released() != 1 || ps.released() != 1 {
		t.Errorf("released %d and %d times", pc.released(), ps.released())
	}
}
