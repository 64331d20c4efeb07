package ipsectest

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// keyLog has each charon write the keys of its children into its host's /run.
const keyLog = "filelog { keys { path = /run/keys.log\n chd = 4\n flush_line = yes } }"

// insider is a peer who writes what it likes into its own SA.
type insider struct {
	*neighbour
	from, to netip.AddrPort // of ESP in UDP
	spi      uint32
	seq      uint32
	salt     []byte
	aead     cipher.AEAD
}

// newInsider takes the keys with which a host has made the child of a peer's.
func newInsider(t *testing.T, h *host, at *host) *insider {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(h.RunDir(), "keys.log"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`encryption initiator key => 20 bytes[^\n]*\n[^:]*: +((?:[0-9A-F]{2} )+)[^\n]*\n[^:]*: +((?:[0-9A-F]{2} ?){4})`).FindSubmatch(log)
	if m == nil {
		t.Fatalf("no keys in %s", log)
	}
	key, err := hex.DecodeString(strings.ReplaceAll(string(m[1])+string(m[2]), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		t.Fatal(err)
	}
	x := &insider{neighbour: newNeighbour(t, h.Host, at), from: netip.AddrPortFrom(h.Addr(), 4500), to: netip.AddrPortFrom(at.Addr(), 4500), seq: 1000, salt: key[16:]}
	if x.aead, err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}
	c := childOf(t, h, at.Name()+"-out")
	spi, err := strconv.ParseUint(c.SPIOut, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	x.spi = uint32(spi)
	return x
}

// carry sends an IPv4 packet by the SA (RFC 4303, RFC 4106, RFC 3948).
func (x *insider) carry(inner []byte) {
	x.t.Helper()
	be := binary.BigEndian
	x.seq++
	head := be.AppendUint32(be.AppendUint32(nil, x.spi), x.seq)
	iv := be.AppendUint64(nil, uint64(x.seq))
	pad := -(len(inner) + 2) & 3
	inner = append(append(inner, 1, 2, 3)[:len(inner)+pad], byte(pad), unix.IPPROTO_IPIP)
	sealed := x.aead.Seal(nil, append(append([]byte{}, x.salt...), iv...), inner, head)
	x.send(datagram{from: x.from, to: x.to, data: append(append(head, iv...), sealed...)}.packet())
}

// TestPeerPutsNothingIntoAnothersStream has a peer who keeps to no rule send by its own SA,
// under its own keys, what pretends to come from another peer: a segment that belongs next
// into that one's stream. The segment that it sends as itself arrives; and the same one as
// the other's, in clear where there is no guard, is taken.
func TestPeerPutsNothingIntoAnothersStream(t *testing.T) {
	lab.Require(t)
	if esp.ProbeKernel() == nil {
		t.Skip("charon's own ESP is asked, whose keys have no ESN; it runs where the kernel has no ESP")
	}
	l := lab.Start(t, lab.Config{Canary: canary, Hosts: []string{"alpha", "beta", "gamma"}, Charon: keyLog, DataPlane: esp.Userland})
	p := &pair{lab: l, alpha: newHost(t, l.Host("alpha")), beta: newHost(t, l.Host("beta")), key: auth.GenerateSecret()}
	other := &pair{lab: l, alpha: newHost(t, l.Host("gamma")), beta: p.beta, key: auth.GenerateSecret()}
	p.addPeers(t)
	other.addPeers(t)
	p.echo(t, p.beta, nil)
	c := p.alpha.mustDial(t, p.beta)
	if err := ping(other.alpha.mustDial(t, p.beta), "an honest stream"); err != nil {
		t.Fatal(err)
	}
	gamma := newInsider(t, other.alpha, p.beta)
	seen := sniff(t, p.beta)
	if err := ping(c, "before"); err != nil {
		t.Fatal(err)
	}
	p.acknowledged(t)
	from := c.Flow().Local
	// next is what follows alpha's last packet with data.
	next := func(after string) segment {
		t.Helper()
		var last segment
		eventually(t, "alpha's packet was seen", func() (ok bool) {
			last, ok = seen.last(func(g segment) bool { return g.from == from && strings.HasPrefix(string(g.data), after) })
			return ok
		})
		p.acknowledged(t)
		return segment{from: last.from, to: last.to, seq: last.next(), ack: last.ack, flags: flagACK | flagPSH, data: []byte("evil")}
	}
	evil := next("before")
	gamma.carry(evil.packet())
	own := evil
	own.from = netip.AddrPortFrom(other.alpha.Addr(), 4711)
	gamma.carry(own.packet())
	eventually(t, "what gamma sends as itself arrives", func() bool { return seen.has(func(g segment) bool { return g.from == own.from }) })
	if err := ping(c, "after"); err != nil {
		t.Error(err)
	}
	if seen.has(func(g segment) bool { return g.from == from && string(g.data) == "evil" }) {
		t.Error("what gamma sent as alpha came out of ESP")
	}
	evil = next("after")
	p.unguard(t, p.beta)
	gamma.send(evil.packet())
	eventually(t, "in clear and without the guard the stream takes it", func() bool {
		return seen.has(func(g segment) bool { return g.to == from && string(g.data) == "evil" }) // the echo
	})
}
