package ibsimnet

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// goldenControls are a client's messages and ibsim's answers: attach, vendor, the node's and the port's state, P_Keys, detach.
var goldenControls = []string{
	"efbeadde 00000000 01000000 2c000000 ef3d0000 00000000 00000000 636c69656e740000" + strings.Repeat("00", 44),
	"efbeadde 00000000 01000000 2c000000 01000000 00000000 00000000 636c69656e740000" + strings.Repeat("00", 44),
	"efbeadde 01000000 04000000 18000000 00000000 00000000 a1000000 00000000 01000000" + strings.Repeat("00", 44),
	"efbeadde 01000000 07000000 40000000 0101010100000000001000020000000000100002000000000010000200400000000000a101" + strings.Repeat("00", 27),
	"efbeadde 01000000 08000000 40000000 0000000000000000fe80000000000000000300010050c04800000ff901021f0274520011404000080804e040000000000000201f000000000000000000300000",
	"efbeadde 01000000 0a000000 40000000 ffff" + strings.Repeat("00", 62),
	"efbeadde 01000000 02000000 00000000" + strings.Repeat("00", 64),
}

// goldenPacket is the head of saquery -S to LID 1, the rest is zeros. (libumad2sim leaves what was on its stack at offset 20; here it is zero.)
const goldenPacket = "00010000" + "00000000" + "00000001" + "00000001" + "00000000" + "00000000" + "0000000000000100" +
	"0103021200000000" + "000000000380e954" + "0031000000000000"

// TestGolden parses what libumad2sim 0.10 sent, as strace showed it on an x86-64, and appends it again.
func TestGolden(t *testing.T) {
	for i, text := range goldenControls {
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseControl(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(c.append(nil)); got != hex.EncodeToString(b) {
			t.Errorf("%s, was %s", got, text)
		}
		switch info, err := mad.ParsePortInfo(c.data[:]); {
		case i < 2:
			if a := c.attachment(); a.node != "client" || a.id != []uint32{0x3def, 1}[i] {
				t.Errorf("%+v", a)
			}
		case c.kind == controlPortInfo && (err != nil || info.LID != 3 || info.MasterSMLID != 1 || info.State != mad.PortActive):
			t.Errorf("%+v, %v", info, err)
		}
	}
	b, err := hex.DecodeString(goldenPacket + strings.Repeat("00", mad.MADLen-24))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePacket(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(p.append(nil)); got != hex.EncodeToString(b) {
		t.Errorf("%s, was %x", got, b)
	}
	if h := p.mad.Header(); p.dlid != 1 || p.dqp != 1 || p.sqp != 1 || p.length != mad.MADLen || h.Class != mad.ClassSubnAdm || h.Attribute != mad.AttrServiceRecord {
		t.Errorf("%+v, %+v", p, h)
	}
}

func TestAttachment(t *testing.T) {
	var c control
	a := attachment{id: 7, qp: 1, isSM: true, node: "client"}
	a.put(&c)
	if got := c.attachment(); got != a {
		t.Errorf("%+v, was %+v", got, a)
	}
	attachment{node: strings.Repeat("x", 100)}.put(&c)
	if got := c.attachment().node; got != strings.Repeat("x", nodeLen-1) {
		t.Errorf("%q: a name is cut and ended", got)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add((&control{kind: controlConnect}).append(nil))
	f.Add((&packet{dlid: 3, length: 256}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseControl(b); err == nil {
			if string(c.append(nil)) != string(b) {
				t.Errorf("%+v", c)
			}
			if a := c.attachment(); len(a.node) > nodeLen {
				t.Errorf("node of %d bytes", len(a.node))
			}
		} else if !errors.Is(err, errMessage) {
			t.Errorf("%v", err)
		}
		if p, err := parsePacket(b); err == nil {
			if again, err := parsePacket(p.append(nil)); err != nil || again != p {
				t.Errorf("%+v, %v, was %+v", again, err, p)
			}
		} else if !errors.Is(err, errMessage) {
			t.Errorf("%v", err)
		}
	})
}
