package attack

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	fabric "github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// hostAttack is what a host of the fabric tries at another by the directory of a manager, with MADs of its own making.
type hostAttack struct {
	name  string
	check checks.Check
	try   func(m *manages) (succeeded bool)
}

func runHosts(t *testing.T, attacks ...hostAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			switch succeeded := a.try(newManages(t)); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// manages is a manager with its directory, to which streams of other hosts are made.
type manages struct {
	*testing.T
	net *verbstest.Fabric
	at  *verbstest.Host
	dir *fabric.Directory
}

func newManages(t *testing.T) *manages {
	t.Helper()
	m := &manages{T: t, net: verbstest.New()}
	m.at = m.net.Host("manager")
	dev, ulp := m.device()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	m.dir = fabric.New(fabric.Config{
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		Run:      func(f func(context.Context)) { wg.Go(func() { f(ctx) }) },
		Services: func() []fabric.Service { return nil }, VPorts: func() []mad.GUID { return nil }, Hosts: func() []mad.GUID { return nil },
		NameOf: func(mad.GUID) string { return "" }, Happened: func(fabric.Event) {}, Secret: func() []byte { return []byte("secret") },
	})
	ln := must(dev.Listen(t.Context(), m.at.Addr(7471), verbs.ListenConfig{Transport: m.at.Transport()}))(t)
	wg.Go(func() {
		for {
			cr, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			id := string(cr.Peer())
			if m.dir.Handle(cr, ulp, fabric.Manager{Identity: id, GUID: fabric.GUIDOf(id), Peer: id}) != nil {
				gsi.Refuse(cr)
			}
		}
	})
	t.Cleanup(func() {
		m.dir.Close()
		cancel()
		wg.Wait()
	})
	self := fabric.Manager{Identity: "manager", GUID: fabric.GUIDOf("manager")}
	if err := m.dir.Apply(fabric.Plan{
		Self: fabric.Self{Identity: "manager", GUID: self.GUID}, Managers: []fabric.Manager{self}, Settings: conf.Default(), StateDir: t.TempDir(), Name: "manager",
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { all := m.dir.Managers(); return len(all) == 1 && all[0].Master })
	return m
}

// device is a host's RNIC, with the consumer that its streams are charged to.
func (m *manages) device() (*verbs.Device, *verbs.ULP) {
	m.Helper()
	dev := must(verbs.Open(verbs.Config{}))(m)
	m.Cleanup(func() { dev.Close() })
	return dev, must(dev.NewULP("fabric", verbs.ULPConfig{Privileged: true}))(m)
}

// member is a host that speaks MADs of its own making.
type member struct {
	*manages
	guid mad.GUID
	link *gsi.Link
	id   uint64

	mu  sync.Mutex // guards the field below it
	got []mad.Packet
}

// Receive implements gsi.Handler.
func (h *member) Receive(_ *gsi.Link, message []byte) {
	p, err := mad.ParsePacket(message)
	if err != nil {
		h.Error(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, p)
}

// join makes a stream of a host with the manager.
func (m *manages) join(name string) *member {
	m.Helper()
	h := &member{manages: m, guid: fabric.GUIDOf(name)}
	_, ulp := m.device()
	at := m.net.Host(name)
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	h.link = must(gsi.Dial(ctx, ulp, verbs.DialConfig{Remote: m.at.Addr(7471), Transport: at.Transport()}, h))(m)
	m.Cleanup(h.link.Close)
	return h
}

func (h *member) send(b mad.MAD) {
	h.Helper()
	p := mad.Packet{GRH: mad.GRH{HopLimit: 1, SGID: gid(h.guid), DGID: gid(fabric.GUIDOf("manager"))}, MAD: b}
	if err := h.link.Send(h.Context(), p.Append(nil)); err != nil {
		h.Fatal(err)
	}
}

// ask sends a request to the SA and waits for its answer.
func (h *member) ask(method mad.Method, attr mad.Attribute, mask mad.Mask, r mad.Record) (answer mad.SA) {
	h.Helper()
	h.id++
	m := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: attr, TransactionID: h.id}, ComponentMask: mask}
	if r != nil {
		r.Append(m.Data[:0])
	}
	h.send(m.MAD())
	eventually(h, func() bool {
		return h.has(func(s mad.SA) bool {
			answer = s
			return s.Method.Response() && s.TransactionID == h.id
		})
	})
	return answer
}

// has reports whether the host was sent a MAD of the SA.
func (h *member) has(is func(mad.SA) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.got, func(p mad.Packet) bool {
		s, err := mad.ParseSA(&p.MAD)
		return err == nil && s.Class == mad.ClassSubnAdm && is(s)
	})
}

// hears reports whether the host was told of an event.
func (h *member) hears(is func(mad.Notice) bool) bool {
	return h.has(func(s mad.SA) bool {
		n, err := mad.ParseNotice(s.Data[:mad.NoticeLen])
		return s.Method == mad.MethodReport && err == nil && is(n)
	})
}

func eventually(t testing.TB, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not come")
		}
	}
}

// trap tells the manager of an event.
func (h *member) trap(n mad.Notice) {
	h.Helper()
	smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodTrap, Attribute: mad.AttrNotice}}
	copy(smp.Data[:], n.Append(nil)[:mad.SMPNoticeLen])
	h.send(smp.MAD())
}

// A host tells the others that something has happened to one of them.
func TestEventsOfAnotherHost(t *testing.T) {
	const disk = 0x42
	tells := func(n mad.Notice) func(*manages) bool {
		return func(m *manages) bool {
			hears, tells := m.join("hears"), m.join("tells")
			all := mad.InformInfo{LIDBegin: mad.InformAllLIDs, Generic: 0xff, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: mad.InformAllTraps, ProducerType: mad.InformAllProducers}
			if a := hears.ask(mad.MethodSet, mad.AttrInformInfo, 0, all); a.Status != mad.StatusOK {
				m.Fatal(a.Status)
			}
			tells.trap(n)
			// What it may tell comes behind it.
			own := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorPathGone}
			mad.PathDetails{SGID: gid(tells.guid), DGID: gid(hears.guid)}.Set(&own)
			tells.trap(own)
			eventually(m, func() bool {
				return hears.hears(func(n mad.Notice) bool { d, err := n.Path(); return err == nil && d.SGID == gid(tells.guid) })
			})
			return hears.hears(func(got mad.Notice) bool { return got.TrapNumber == n.TrapNumber && got.Data == n.Data })
		}
	}
	path := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorPathBack}
	mad.PathDetails{SGID: gid(fabric.GUIDOf("third")), DGID: gid(fabric.GUIDOf("tells"))}.Set(&path)
	resized := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorExportResized}
	mad.ExportDetails{ServiceID: disk, Port: fabric.GUIDOf("third"), Size: 1}.Set(&resized)
	down := mad.Notice{Generic: true, Type: mad.NoticeSM, ProducerType: mad.ProducerManager, TrapNumber: mad.TrapGIDOutOfService}
	mad.GIDDetails{GID: gid(fabric.GUIDOf("third"))}.Set(&down)
	runHosts(t,
		hostAttack{"its path", checks.NoticeOfItself, tells(path)},
		hostAttack{"its export", checks.NoticeOfItself, tells(resized)},
		hostAttack{"it is down", checks.NoticeOfItself, tells(down)},
	)
}
