package sa

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

func (l *lab) guidRow(r result) mad.GUIDInfoRecord {
	l.Helper()
	g, err := mad.ParseGUIDInfoRecord(r.sa.Data[:mad.GUIDInfoRecordLen])
	if err != nil {
		l.Fatal(err)
	}
	return g
}

func TestAliasGUIDs(t *testing.T) {
	l := newLab(t)
	lid := l.ports[beta].LID
	bit := mad.GUIDInfoMaskGUID
	chosen := l.guidRow(l.ok(by(beta).guids(mad.MethodSet, lid, 0, bit(1))))
	if chosen.GUIDs[0] != beta || chosen.GUIDs[1] == 0 || chosen.LID != lid {
		t.Errorf("chosen: %v", chosen)
	}
	if again := l.guidRow(l.ok(by(beta).guids(mad.MethodSet, lid, 0, bit(1)))); again != chosen {
		t.Errorf("asked again: %v", again)
	}
	for what, c := range map[string]struct {
		guids []mad.GUID
		want  mad.GUID // of place 2
	}{
		"a free one":          {[]mad.GUID{2: 0x4242_0000_0001}, 0x4242_0000_0001},
		"another host's":      {[]mad.GUID{2: alpha}, 0},
		"another's vport's":   {[]mad.GUID{2: vport}, 0},
		"the manager's":       {[]mad.GUID{2: manager}, 0},
		"its own":             {[]mad.GUID{2: beta}, 0},
		"one that it has":     {[]mad.GUID{2: chosen.GUIDs[1]}, 0},
		"one that is to come": {[]mad.GUID{2: 0x5e5e_0000_0001}, 0},
		"another's range":     {[]mad.GUID{2: alpha + 99}, 0},
		"its own range":       {[]mad.GUID{2: beta + 99}, beta + 99},
	} {
		l.cfg.Reserved = func(g mad.GUID) bool { return rangeOf(g) == 0x5e5e || rangeOf(g) == rangeOf(beta) }
		if r := l.guidRow(l.ok(by(beta).guids(mad.MethodSet, lid, 0, bit(2), c.guids...))); r.GUIDs[2] != c.want {
			t.Errorf("%s: %v", what, r)
		}
		l.ok(by(beta).guids(mad.MethodDelete, lid, 0, bit(2)))
	}
	if r := l.guidRow(l.ok(by(beta).guids(mad.MethodDelete, lid, 0, mad.GUIDInfoMaskGUIDs))); r.GUIDs != [8]mad.GUID{beta} {
		t.Errorf("all deleted: %v", r)
	}
	l.want("no block", by(beta).to(mad.MethodSet, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|bit(1), mad.GUIDInfoRecord{LID: lid}), false, mad.StatusInsufficientComponents)
	l.want("no GUID", by(beta).guids(mad.MethodSet, lid, 0, 0), false, mad.StatusInsufficientComponents)
	l.want("LID of nobody", by(beta).guids(mad.MethodSet, 999, 0, bit(1)), false, mad.StatusNoRecords)
	l.want("a block too far", by(beta).guids(mad.MethodSet, lid, blocks, bit(1)), false, mad.StatusReqInvalid)
	l.want("the last block", by(beta).guids(mad.MethodSet, lid, blocks-1, bit(7)), false, mad.StatusOK)
	rows := l.rows(l.do(by(beta).table(mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID, mad.GUIDInfoRecord{LID: lid})), mad.GUIDInfoRecordLen)
	if len(rows) != 2 {
		t.Errorf("%d blocks", len(rows))
	}
}

// A vport of the configuration stays, whatever is asked; one that was asked for goes, with what it has registered.
func TestVPortsThatStayAndGo(t *testing.T) {
	l := newLab(t)
	lid := l.ports[alpha].LID
	l.ok(by(alpha).guids(mad.MethodDelete, lid, 0, mad.GUIDInfoMaskGUIDs))
	if n := len(l.GUIDs()); n != 7 {
		t.Errorf("%v", l.GUIDs())
	}
	guid := l.guidRow(l.ok(by(alpha).guids(mad.MethodSet, lid, 0, mad.GUIDInfoMaskGUID(5)))).GUIDs[5]
	l.ok(byVPort(guid).setService(serviceAt(1, guid, "docs")))
	if s := l.Services(l.now); len(s) != 1 || s[0].Owner.VPort != guid {
		t.Errorf("%+v", s)
	}
	l.ok(byVPort(vport).setService(serviceAt(2, vport, "films")))
	l.ok(by(alpha).guids(mad.MethodDelete, lid, 0, mad.GUIDInfoMaskGUID(5)))
	l.want("as a vport that is gone", byVPort(guid).setService(serviceAt(1, guid, "docs")), true, 0)
	if s := l.Services(l.now); len(s) != 1 || s[0].Owner.VPort != vport {
		t.Errorf("%+v", s)
	}
	l.up(Port{GUID: alpha, Name: "alpha", VPorts: []VPort{{vport2, "alpha/bob"}}}) // another configuration
	if s := l.Services(l.now); len(s) != 0 {
		t.Errorf("%+v", s)
	}
}

// A host that comes up takes the GUIDs of its range from whoever has them as aliases, with what was registered for them.
func TestHostTakesItsGUIDs(t *testing.T) {
	const delta, deltas mad.GUID = 0xde17a_0000_0001, 0xde17a_0000_0002
	l := newLab(t)
	l.ok(by(beta).guids(mad.MethodSet, l.ports[beta].LID, 1, mad.GUIDInfoMaskGUID(0)|mad.GUIDInfoMaskGUID(1), delta, deltas))
	if n := len(l.GUIDs()); n != 9 {
		t.Fatalf("%v", l.GUIDs())
	}
	l.ok(by(beta).setService(serviceAt(1, delta, "docs")))
	l.ok(by(alpha).setService(serviceAt(2, deltas, "docs")))
	l.ok(by(alpha).join(mgid, deltas, mad.JoinFull))
	l.up(Port{GUID: delta, Name: "delta"})
	for _, g := range l.GUIDs() {
		if g.Port == beta && g.GUID != beta {
			t.Errorf("beta still has %s", g.GUID)
		}
	}
	if s, g := l.Services(l.now), l.Groups(); len(s) != 0 || len(g) != 0 {
		t.Errorf("%+v, %+v", s, g)
	}
	l.ok(by(delta).setService(serviceAt(1, delta, "docs")))
	l.want("beta in its name", by(beta).deleteService(serviceAt(1, delta, "")), false, mad.StatusDenied)
}

// A vport of the configuration goes to its port, whoever had asked for its GUID.
func TestVPortOfTheConfigurationIsItsPorts(t *testing.T) {
	const free mad.GUID = 0x4242_0000_0001
	l := newLab(t)
	l.ok(by(beta).guids(mad.MethodSet, l.ports[beta].LID, 1, mad.GUIDInfoMaskGUID(0), free))
	l.ok(by(beta).setService(serviceAt(1, free, "docs")))
	l.ok(by(beta).inform(vendors(mad.VendorExportGone)))
	l.sent = nil
	l.up(Port{GUID: alpha, Name: "alpha", VPorts: []VPort{{free, "alpha/carol"}}})
	if got := l.reports(beta); len(got) != 1 {
		t.Errorf("%d events of a service that is gone", len(got))
	}
	for _, g := range l.GUIDs() {
		if g.GUID == free && (g.Port != alpha || g.Name != "alpha/carol" || !g.Configured) {
			t.Errorf("%+v", g)
		}
	}
	if s := l.Services(l.now); len(s) != 0 {
		t.Errorf("%+v", s)
	}
}

// What others have registered for a host goes with it.
func TestProxiedRecordsGoWithTheirHost(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).setService(serviceAt(1, alpha, "docs")))
	l.ok(by(beta).setService(serviceAt(1, vport, "docs")))
	l.ok(by(beta).join(mgid, alpha, mad.JoinFull))
	l.down(alpha)
	l.wait(deadAfter)
	if s, g := l.Services(l.now), l.Groups(); len(s) != 0 || len(g) != 0 || l.ports[beta].used != (use{}) {
		t.Errorf("%+v, %+v, %+v", s, g, l.ports[beta].used)
	}
}

func TestPortThatCannotBe(t *testing.T) {
	l := newLab(t)
	for what, p := range map[string]Port{
		"GUID 0":              {Name: "x"},
		"a multicast LID":     {GUID: 0x77, LID: mad.FirstMulticastLID},
		"another's LID":       {GUID: 0x77, LID: l.ports[alpha].LID},
		"vport 0":             {GUID: 0x77, VPorts: []VPort{{}}},
		"itself as a vport":   {GUID: 0x77, VPorts: []VPort{{GUID: 0x77}}},
		"another as a vport":  {GUID: 0x77, VPorts: []VPort{{GUID: alpha}}},
		"another's vport":     {GUID: 0x77, VPorts: []VPort{{GUID: vport}}},
		"one vport, twice":    {GUID: 0x77, VPorts: []VPort{{GUID: 0x78}, {GUID: 0x78}}},
		"too many vports":     {GUID: 0x77, VPorts: make([]VPort, MaxAliases)},
		"a known one, with 0": {GUID: alpha, VPorts: []VPort{{}}},
	} {
		if _, _, err := l.PortUp(l.now, p); !errors.Is(err, ErrPort) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(l.Ports()); n != 5 {
		t.Errorf("%d ports", n)
	}
	for i := len(l.Ports()); i < MaxPorts; i++ {
		l.up(Port{GUID: mad.GUID(0x10000000 + i)})
	}
	if _, _, err := l.PortUp(l.now, Port{GUID: 0x77}); !errors.Is(err, ErrPortLimit) {
		t.Errorf("beyond the limit: %v", err)
	}
}

// A host gets the LID that it had.
func TestLIDStays(t *testing.T) {
	l := newLab(t)
	had := l.ports[beta].LID
	l.down(beta)
	l.wait(time.Minute)
	l.up(Port{GUID: 0x77})
	if got := l.up(Port{GUID: beta, Name: "beta"}); got != had {
		t.Errorf("LID %d, it had %d", got, had)
	}
	if got := l.up(Port{GUID: beta, Name: "beta", LID: 500}); got != 500 || l.lids[had] != nil {
		t.Errorf("LID %d", got)
	}
}

func TestHostsComeAndGo(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).inform(toAll(mad.InformAllTraps)))
	l.sent = nil
	l.down(gamma)
	l.down(gamma)
	l.wait(time.Second)
	l.up(Port{GUID: gamma, Name: "gamma"})
	l.up(Port{GUID: gamma, Name: "gamma"})
	if got := l.seen(beta); !slices.Equal(got, []string{"65 gamma", "64 gamma"}) {
		t.Errorf("%q", got)
	}
	v := serviceAt(1, gamma, "docs")
	l.ok(by(gamma).setService(v))
	l.down(gamma)
	l.wait(deadAfter - time.Second)
	if n := len(l.Services(l.now)); n != 1 {
		t.Errorf("%d services of a host that has just gone", n)
	}
	l.wait(time.Second)
	if n := len(l.Services(l.now)); n != 0 || len(l.Ports()) != 4 {
		t.Errorf("%d services of a host that is gone", n)
	}
}

func TestPaths(t *testing.T) {
	l := newLab(t)
	lid := func(g mad.GUID) mad.LID { return l.ports[g].LID }
	count := func(mask mad.Mask, p mad.PathRecord) (n int) {
		t.Helper()
		for _, b := range l.rows(l.do(by(alpha).table(mad.AttrPathRecord, mask, p)), mad.PathRecordLen) {
			got, err := mad.ParsePathRecord(b)
			if err != nil || got.SLID == 0 || got.DLID == 0 || !got.Reversible || got.PKey != 0xffff {
				t.Errorf("%+v, %v", got, err)
			}
			n++
		}
		return n
	}
	from, to := mad.PathMaskSGID|mad.PathMaskSLID, mad.PathMaskDGID
	p := mad.PathRecord{SGID: gidOf(alpha), SLID: lid(alpha), DGID: gidOf(beta), DLID: lid(beta), MTU: mad.MTU2048, NumbPath: 1}
	for what, c := range map[string]struct {
		mask mad.Mask
		p    mad.PathRecord
		n    int
	}{
		"all":                   {0, p, 25},
		"from one":              {from, p, 5},
		"to one":                {to, p, 5},
		"from one to one":       {from | to | mad.PathMaskDLID | mad.PathMaskNumbPath | mad.PathMaskReversible, p, 1},
		"GID and LID disagree":  {from, mad.PathRecord{SGID: gidOf(alpha), SLID: lid(beta)}, 0},
		"to nobody":             {to, mad.PathRecord{DGID: gidOf(0x77)}, 0},
		"to a vport":            {from | to, mad.PathRecord{SGID: p.SGID, SLID: p.SLID, DGID: gidOf(vport)}, 1},
		"an MTU above":          {from | to | mad.PathMaskMTU | mad.PathMaskMTUSelector, p, 1},
		"another P_Key":         {from | to | mad.PathMaskPKey, p, 0},
		"exactly a smaller MTU": {from | to | mad.PathMaskMTU, p, 0},
	} {
		if n := count(c.mask, c.p); n != c.n {
			t.Errorf("%s: %d paths, want %d", what, n, c.n)
		}
	}
	get := l.ok(by(alpha).to(mad.MethodGet, mad.AttrPathRecord, to, p)) // from the requester
	if got, err := mad.ParsePathRecord(get.sa.Data[:mad.PathRecordLen]); err != nil || got.SGID != gidOf(alpha) || got.DLID != lid(beta) {
		t.Errorf("%+v, %v", got, err)
	}
	l.down(beta)
	if n := count(to, p); n != 0 {
		t.Errorf("%d paths to a host that is down", n)
	}
	if n := count(from, p); n != 4 {
		t.Errorf("%d paths from alpha", n)
	}
}

// What saquery asks for besides: nodes, ports, the manager.
func TestNodesAndPorts(t *testing.T) {
	l := newLab(t)
	l.up(Port{GUID: 0x77, Name: "a\x1b[2J\u202e" + string(make([]byte, 80))})
	rows := l.rows(l.do(by(alpha).table(mad.AttrNodeRecord, 0, nil)), mad.NodeRecordLen)
	for _, b := range rows {
		n, err := mad.ParseNodeRecord(b)
		if _, bad := n.Description.Text(); err != nil || bad != nil {
			t.Errorf("%+v: %v, %v", n, err, bad)
		}
	}
	if len(rows) != 6 {
		t.Errorf("%d nodes", len(rows))
	}
	l.down(beta)
	r := l.ok(by(alpha).to(mad.MethodGet, mad.AttrPortInfoRecord, mad.PortMaskEndportLID, mad.PortInfoRecord{EndportLID: l.ports[beta].LID}))
	if p, err := mad.ParsePortInfoRecord(r.sa.Data[:mad.PortInfoRecordLen]); err != nil || p.PortInfo.State != mad.PortDown || p.PortInfo.MKey != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	r = l.ok(by(alpha).to(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil))
	if m, err := mad.ParseSMInfoRecord(r.sa.Data[:mad.SMInfoRecordLen]); err != nil || m.SMInfo.State != mad.SMMaster || m.SMInfo.SMKey != 0 || m.LID != l.ports[manager].LID {
		t.Errorf("%+v, %v", m, err)
	}
	r = l.ok(by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
	if c, err := mad.ParseClassPortInfo(r.sa.Data[:mad.ClassPortInfoLen]); err != nil || c.ClassVersion != mad.SAClassVersion {
		t.Errorf("%+v, %v", c, err)
	}
}
