package guard

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/transport"
)

// inFreshNS runs f in a network namespace of its own.
func inFreshNS(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace takes root: run the tests as root")
	}
	if err := CanBlock(); errors.Is(err, ErrNoBlock) {
		t.Skip(err)
	}
	if err := nsdo.Fresh(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func entryFor(addr string, proto transport.Protocol, d time.Duration, why string) BlockEntry {
	return BlockEntry{LinkKey: LinkKey{netip.MustParseAddr(addr), proto, 7471}, Peer: "alpha", Why: why, Until: time.Now().Add(d)}
}

// keyAndWhy is what is the same of an entry that was written and one that was read.
func keyAndWhy(entries []BlockEntry) (out []string) {
	for _, e := range entries {
		out = append(out, strings.Join([]string{e.Addr.String(), e.proto.String(), e.Peer, e.Why, time.Until(e.Until).Round(time.Minute).String()}, " "))
	}
	slices.Sort(out)
	return out
}

func TestBlocksAreReadAsTheyWereWritten(t *testing.T) {
	inFreshNS(t, func() {
		if have, err := ReadBlocks(""); err != nil || len(have) != 0 {
			t.Errorf("a new namespace has %v, %v", have, err)
		}
		longest := strings.Repeat("x", maxWhy)
		one := []BlockEntry{entryFor("10.0.0.1", transport.ProtoTCP, time.Hour, "a: b"), entryFor("fd99::1", transport.ProtoSCTP, MaxBlock, longest)}
		one[1].Peer = strings.Repeat("p", 63)
		two := entryFor("10.0.0.1", transport.ProtoTCP, time.Minute, "again")
		for _, change := range []struct {
			gone []LinkKey
			add  []BlockEntry
			want []BlockEntry
		}{
			{nil, one, one},
			{[]LinkKey{one[0].LinkKey}, []BlockEntry{two}, []BlockEntry{one[1], two}},
			{[]LinkKey{one[0].LinkKey, {netip.MustParseAddr("10.9.9.9"), 6, 1}}, nil, one[1:]},
			{[]LinkKey{one[1].LinkKey}, []BlockEntry{entryFor("10.0.0.3", transport.ProtoTCP, -time.Second, "over")}, nil},
		} {
			if err := WriteBlocks("", change.gone, change.add); err != nil {
				t.Fatal(err)
			}
			have, err := ReadBlocks("")
			if err != nil || !slices.Equal(keyAndWhy(have), keyAndWhy(change.want)) {
				t.Errorf("%v, %v, want %v", keyAndWhy(have), err, keyAndWhy(change.want))
			}
			if faults, err := CheckBlocks(""); err != nil || len(faults) > 0 {
				t.Errorf("faults %v, %v", faults, err)
			}
		}
	})
}

// TestBlocksSurviveATableOfAnotherLayout has what another version might leave.
func TestBlocksSurviveATableOfAnotherLayout(t *testing.T) {
	inFreshNS(t, func() {
		kept := entryFor("fd99::1", transport.ProtoTCP, time.Hour, "kept")
		if err := WriteBlocks("", nil, []BlockEntry{kept}); err != nil {
			t.Fatal(err)
		}
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		table := &nftables.Table{Name: blockTable, Family: nftables.TableFamilyINet}
		c.FlushTable(table)
		c.DelSet(&nftables.Set{Table: table, Name: "peers4"})
		if err := c.AddSet(&nftables.Set{Table: table, ID: 9, Name: "peers4", KeyType: nftables.TypeIPAddr}, []nftables.SetElement{{Key: []byte{10, 0, 0, 1}}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		if faults, err := CheckBlocks(""); err != nil || len(faults) == 0 {
			t.Errorf("nothing is amiss without the rules: %v", err)
		}
		add := entryFor("10.0.0.2", transport.ProtoTCP, time.Hour, "new")
		if err := WriteBlocks("", nil, []BlockEntry{add}); err != nil {
			t.Fatal(err)
		}
		have, err := ReadBlocks("")
		if want := []BlockEntry{kept, add}; err != nil || !slices.Equal(keyAndWhy(have), keyAndWhy(want)) {
			t.Errorf("%v, %v, want %v", keyAndWhy(have), err, keyAndWhy(want))
		}
		if faults, err := CheckBlocks(""); err != nil || len(faults) > 0 {
			t.Errorf("faults %v, %v", faults, err)
		}
	})
}

func TestWhoMayNotBlockIsTold(t *testing.T) {
	err := otheruser.AsNobody(func() error {
		return WriteBlocks("", nil, []BlockEntry{entryFor("10.0.0.1", transport.ProtoTCP, time.Hour, "")})
	})
	if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without privileges: %v", err)
	}
	for _, e := range []error{syscall.EPROTONOSUPPORT, syscall.EOPNOTSUPP, syscall.EAFNOSUPPORT} {
		if err := explainBlock(e); !errors.Is(err, ErrNoBlock) || !errors.Is(err, e) {
			t.Errorf("%v: %v", e, err)
		}
	}
}

// TestBlocksOfAsManyPeersAsArePossible has all of them blocked at once, with the
// longest names and reasons, as when somebody has flushed nf_tables.
func TestBlocksOfAsManyPeersAsArePossible(t *testing.T) {
	inFreshNS(t, func() {
		var add []BlockEntry
		for _, g := range asManyAsPossible() {
			for _, k := range g.Keys() {
				add = append(add, BlockEntry{LinkKey: k, Peer: strings.Repeat("p", 63), Why: strings.Repeat("x", maxWhy), Until: time.Now().Add(time.Hour)})
			}
		}
		if err := WriteBlocks("", nil, add); err != nil {
			t.Fatal(err)
		}
		if have, err := ReadBlocks(""); err != nil || len(have) != len(add) {
			t.Errorf("the kernel has %d of %d, %v", len(have), len(add), err)
		}
	})
}
