package sa

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

func (l *lab) numbers(of mad.GUID) (list []uint64) {
	for _, d := range l.log {
		if d.From.GUID == of {
			list = append(list, d.Number)
		}
	}
	return list
}

// Of drops of one requester in a row, numbers 0, 1, 2, 5, 10, 20, 50, 100, 200 ... are logged.
func TestDropsAreLoggedAtTheirMarks(t *testing.T) {
	l := newLab(t, model)
	bad := by(alpha).table(mad.AttrServiceRecord, 0, nil)
	for range 2500 {
		l.do(bad)
	}
	if n := l.numbers(alpha); !slices.Equal(n, []uint64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}) {
		t.Errorf("%d", n)
	}
	l.do(by(beta).table(mad.AttrServiceRecord, 0, nil))
	if n := l.numbers(beta); !slices.Equal(n, []uint64{0}) {
		t.Errorf("of another requester: %d", n)
	}
	l.do(byVPort(vport).table(mad.AttrServiceRecord, 0, nil))
	if d := l.log[len(l.log)-1]; d.From.VPort != vport || d.Number != 0 || d.Name != "alpha/alice" {
		t.Errorf("of its vport: %+v", d)
	}
	if got := l.Drops()[0]; got.From.GUID != alpha || got.ByReason[NotAllowed] != 2500 || got.Total() != 2500 {
		t.Errorf("%+v", got)
	}
}

// What is dropped for another reason has a row of its own, so that news is not lost in it.
func TestAnotherReasonIsLoggedAtOnce(t *testing.T) {
	l := newLab(t, model)
	for range 4 {
		l.do(by(alpha).table(mad.AttrServiceRecord, 0, nil))
	}
	wrong := by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil)
	wrong.key = 1
	l.do(wrong)
	if d := l.log[len(l.log)-1]; d.Reason != WrongKey || d.Number != 0 || len(l.activity) != 1 {
		t.Errorf("%v, events %v", l.log, l.activity)
	}
}

// A requester can't have each drop logged by good requests between bad ones, or by a reconnect; a minute without a drop ends
// the row.
func TestRowOfDropsEndsByTimeAlone(t *testing.T) {
	l := newLab(t, model)
	for range 10 {
		l.do(by(alpha).table(mad.AttrServiceRecord, 0, nil))
		l.ok(by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
		l.down(alpha)
		l.up(Port{GUID: alpha, Name: "alpha"})
	}
	if n := l.numbers(alpha); !slices.Equal(n, []uint64{0, 1, 2, 5}) {
		t.Errorf("%d", n)
	}
	l.log = nil
	l.wait(quietRun)
	l.do(by(alpha).table(mad.AttrServiceRecord, 0, nil))
	if n := l.numbers(alpha); !slices.Equal(n, []uint64{0}) {
		t.Errorf("after a quiet minute: %d", n)
	}
	for range 9 {
		l.wait(quietRun - time.Second)
		l.do(by(alpha).table(mad.AttrServiceRecord, 0, nil))
	}
	if n := l.numbers(alpha); !slices.Equal(n, []uint64{0, 1, 2, 5}) {
		t.Errorf("ten, each within a minute of the one before: %d", n)
	}
}

func TestTableOfDropsIsBounded(t *testing.T) {
	l := newLab(t)
	const many = maxDroppers + 500
	for i := range many {
		l.now = l.now.Add(time.Millisecond)
		l.drop(l.now, Requester{GUID: alpha, VPort: mad.GUID(i)}, "Get", SpoofedSGID)
	}
	if n := len(l.Drops()); n != maxDroppers {
		t.Errorf("%d requesters", n)
	}
	if first := l.Drops()[0]; first.From.VPort != many-1 {
		t.Errorf("the last is %v", first.From)
	}
	for i := range 100 {
		l.drop(l.now, Requester{GUID: mad.GUID(0x9999 + i)}, "MAD", UnknownPort)
	}
	if n := len(l.Drops()); n != maxDroppers {
		t.Errorf("with strangers: %d requesters", n)
	}
}

// A line says who has asked for what, and why it was dropped; no key is in it.
func TestLineOfADrop(t *testing.T) {
	l := newLab(t, model)
	a := byVPort(vport).setService(serviceAt(1, vport, "docs"))
	a.key = 0xdeadbeef
	l.do(a)
	line := l.log[0].String()
	for _, part := range []string{"Set ServiceRecord", "alpha/alice", alpha.String(), vport.String(), "SA_Key"} {
		if !strings.Contains(line, part) {
			t.Errorf("%q lacks %q", line, part)
		}
	}
	if strings.Contains(line, "deadbeef") || strings.Contains(fmt.Sprintf("%+v", l.Drops()), "deadbeef") {
		t.Errorf("%q", line)
	}
	for r := UnknownPort; r < reasons; r++ {
		if r.String() == "unknown" {
			t.Errorf("reason %d has no words", r)
		}
	}
}

// A host that has new alias GUIDs again and again, each with rows of its own, has no more lines than others.
func TestDropsOfEverNewVPorts(t *testing.T) {
	l := newLab(t, model)
	lid := l.ports[beta].LID
	before := len(l.log)
	for round := range 200 {
		var guids [mad.GUIDsPerBlock]mad.GUID
		for i := range guids {
			guids[i] = beta + mad.GUID(1000+8*round+i)
		}
		l.ok(by(beta).guids(mad.MethodSet, lid, 1, mad.GUIDInfoMaskGUIDs, guids[:]...))
		for _, g := range guids {
			l.do(ask{from: Requester{GUID: beta, VPort: g}}.table(mad.AttrServiceRecord, 0, nil))
		}
	}
	if n := len(l.log) - before; n < 8 || n > lineBurst {
		t.Errorf("%d lines", n)
	}
	l.do(by(alpha).table(mad.AttrServiceRecord, 0, nil))
	if x := l.log[len(l.log)-1]; x.From.GUID != alpha {
		t.Errorf("the last line is of %+v", x)
	}
}
