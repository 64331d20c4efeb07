package target_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
)

var le = binary.LittleEndian

// logPage reads n bytes of a log page from off on.
func logPage(s *served, q *nvmetest.Queue, page nvme.LogPage, n int, off uint64, keep bool) ([]byte, nvme.Completion, error) {
	c := q.New(nvme.AdminGetLogPage)
	d := uint32(page) | uint32(n/4-1)<<16
	if keep {
		d |= 1 << 15
	}
	c.SetDWord(10, d)
	c.SetDWord(11, uint32(n/4-1)>>16)
	c.SetDWord(12, uint32(off))
	c.SetDWord(13, uint32(off>>32))
	return q.In(s.ctx, c, n)
}

// identify runs Identify.
func identify(s *served, q *nvmetest.Queue, cns nvme.CNS, nsid uint32) ([]byte, nvme.Completion, error) {
	c := q.New(nvme.AdminIdentify)
	c.SetDWord(10, uint32(cns))
	c.SetNSID(nsid)
	return q.In(s.ctx, c, nvme.IdentifyLen)
}

// feature runs Get Features, or Set Features with a value.
func feature(s *served, q *nvmetest.Queue, f nvme.Feature, set ...uint32) (nvme.Completion, error) {
	c := q.New(nvme.AdminGetFeatures)
	if len(set) > 0 {
		c = q.New(nvme.AdminSetFeatures)
		c.SetDWord(11, set[0])
	}
	c.SetNSID(1)
	c.SetDWord(10, uint32(f))
	return q.Do(s.ctx, c)
}

// TestIdentify: what a host asks for on its way to a disk, and what is not there.
func TestIdentify(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	h := s.host(1)
	b, e, err := identify(s, h.Admin, nvme.CNSController, 0)
	want(t, "controller", e, err, nvme.Success)
	if got := le.Uint16(b[78:]); got != h.Controller || b[77] != 8 || le.Uint16(b[320:]) == 0 || le.Uint32(b[536:])&4 == 0 || !bytes.HasPrefix(b[768:], []byte(subsystemNQN+"\x00")) {
		t.Errorf("controller %d: %x", got, b[:128])
	}
	b, e, err = identify(s, h.Admin, nvme.CNSActiveList, 0)
	want(t, "list", e, err, nvme.Success)
	if le.Uint32(b) != 1 || le.Uint32(b[4:]) != 0 {
		t.Errorf("namespaces %x", b[:16])
	}
	b, e, err = identify(s, h.Admin, nvme.CNSActiveList, 1)
	want(t, "list behind 1", e, err, nvme.Success)
	if le.Uint32(b) != 0 {
		t.Errorf("namespaces %x", b[:16])
	}
	b, e, err = identify(s, h.Admin, nvme.CNSNamespace, 1)
	want(t, "namespace", e, err, nvme.Success)
	disk := s.store.Identity().Disk
	if le.Uint64(b) != diskSize/512 || !bytes.Equal(b[104:120], disk[:]) || b[130] != 9 {
		t.Errorf("namespace %x", b[:136])
	}
	b, e, err = identify(s, h.Admin, nvme.CNSNamespace, 2)
	want(t, "a namespace that is not active", e, err, nvme.Success)
	if !bytes.Equal(b, make([]byte, nvme.IdentifyLen)) {
		t.Errorf("namespace %x", b[:136])
	}
	for what, c := range map[string]struct {
		cns  nvme.CNS
		nsid uint32
		st   nvme.Status
	}{
		"namespace 0":                      {nvme.CNSNamespace, 0, nvme.InvalidNamespace},
		"a namespace beyond all":           {nvme.CNSNamespace, 5000, nvme.InvalidNamespace},
		"descriptors of none":              {nvme.CNSDescriptors, 2, nvme.InvalidNamespace},
		"a list from the end on":           {nvme.CNSActiveList, 0xfffffffe, nvme.InvalidNamespace},
		"something that there is not":      {0x7f, 0, nvme.InvalidField},
		"controllers, which nobody lists":  {0x13, 0, nvme.InvalidField},
		"the NVM command set's controller": {nvme.CNSControllerNVM, 0, nvme.Success},
	} {
		_, e, err := identify(s, h.Admin, c.cns, c.nsid)
		want(t, what, e, err, c.st)
	}
}

// TestFeatures of a controller: what Linux and nvme-cli read and set.
func TestFeatures(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	h := s.host(1)
	e, err := feature(s, h.Admin, nvme.FeatureQueues, 127|127<<16)
	want(t, "queues", e, err, nvme.Success)
	if e.Result != 15|15<<16 {
		t.Errorf("queues: %#x", e.Result)
	}
	for what, c := range map[string]struct {
		f   nvme.Feature
		set uint32
		st  nvme.Status
	}{
		"65536 queues":               {nvme.FeatureQueues, 0xffff, nvme.InvalidField},
		"no write cache":             {nvme.FeatureWriteCache, 0, nvme.FeatureNotChangeable},
		"a write cache":              {nvme.FeatureWriteCache, 1, nvme.Success},
		"another host identifier":    {nvme.FeatureHostID, 1, nvme.SequenceError},
		"two hours of silence":       {nvme.FeatureKeepAlive, 7200_000, nvme.KeepAliveInvalid},
		"a feature that there isn't": {0x7f, 0, nvme.InvalidField},
		"to be saved":                {nvme.Feature(nvme.FeatureAsyncEvents), 0, nvme.Success},
	} {
		e, err := feature(s, h.Admin, c.f, c.set)
		want(t, what, e, err, c.st)
	}
	saved := h.Admin.New(nvme.AdminSetFeatures)
	saved.SetDWord(10, uint32(nvme.FeatureAsyncEvents)|1<<31)
	e, err = h.Admin.Do(s.ctx, saved)
	want(t, "a feature that is to be saved", e, err, nvme.FeatureNotSaveable)
	e, err = feature(s, h.Admin, nvme.FeatureKeepAlive, 1500)
	want(t, "keep alive", e, err, nvme.Success)
	e, err = feature(s, h.Admin, nvme.FeatureKeepAlive)
	want(t, "keep alive", e, err, nvme.Success)
	if e.Result != 2000 {
		t.Errorf("a keep alive timeout of 1.5 s is %d ms", e.Result)
	}
	c := h.Admin.New(nvme.AdminGetFeatures)
	c.SetDWord(10, uint32(nvme.FeatureHostID))
	c.SetDWord(11, 1)
	b, e, err := h.Admin.In(s.ctx, c, 16)
	want(t, "host identifier", e, err, nvme.Success)
	if x := id(1); !bytes.Equal(b, x[:]) {
		t.Errorf("host identifier %x", b)
	}
}

// TestKeepAlive: a controller ends when nothing has come for the timeout, and lives as long as commands come.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a host that a busy machine keeps from sending is silent, too
		s := serveInMemory(t, target.Config{})
		h, q := s.queue(1)
		e, err := feature(s, h.Admin, nvme.FeatureKeepAlive, 1000)
		want(t, "keep alive", e, err, nvme.Success)
		c := q.New(nvme.Flush)
		c.SetNSID(1)
		for range 15 { // for longer than the timeout, on another queue
			<-time.After(100 * time.Millisecond)
			e, err := q.Do(s.ctx, c)
			want(t, "flush", e, err, nvme.Success)
		}
		began := time.Now()
		<-q.QP.Done()
		<-h.Admin.QP.Done()
		if took := time.Since(began); took < 900*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
		eventually(t, "the controller is gone", func() bool { return len(s.server.Controllers()) == 0 })
	})
}

// TestLogPages: whole, in pieces, and what there is not.
func TestLogPages(t *testing.T) {
	s := serve(t, target.Config{Firmware: "7.1"}, target.Subsystem{}, nil)
	h, q := s.queue(1)
	e, err := q.Do(s.ctx, rw(q, nvme.WriteZeroes, 1<<40, 1))
	want(t, "beyond the end", e, err, nvme.LBAOutOfRange)
	e, err = q.Inline(s.ctx, rw(q, nvme.Write, 0, 8), make([]byte, 4096))
	want(t, "a write", e, err, nvme.Success)
	b, e, err := logPage(s, h.Admin, nvme.LogErrors, 64, 0, false)
	want(t, "errors", e, err, nvme.Success)
	if le.Uint64(b) != 1 || le.Uint16(b[8:]) != 1 || nvme.Status(le.Uint16(b[12:])>>1).Code() != nvme.LBAOutOfRange || le.Uint64(b[16:]) != 1<<40 || le.Uint32(b[24:]) != 1 {
		t.Errorf("the newest error %x", b)
	}
	b, e, err = logPage(s, h.Admin, nvme.LogHealth, 512, 0, false)
	want(t, "health", e, err, nvme.Success)
	if le.Uint64(b[80:]) != 1 || le.Uint64(b[48:]) != 1 || b[0] != 0 {
		t.Errorf("health %x", b[:128])
	}
	b, e, err = logPage(s, h.Admin, nvme.LogFirmware, 8, 8, false)
	want(t, "a piece of the firmware log", e, err, nvme.Success)
	if string(b) != "7.1     " {
		t.Errorf("firmware %q", b)
	}
	b, e, err = logPage(s, h.Admin, nvme.LogEffects, 4096, 0, false)
	want(t, "effects", e, err, nvme.Success)
	if le.Uint32(b[4*6:]) != 1 || le.Uint32(b[1024+4:]) != 3 || le.Uint32(b[1024+4*4:]) != 0 {
		t.Errorf("Identify, Write and Write Uncorrectable: %x %x %x", b[24:28], b[1028:1032], b[1040:1044])
	}
	for what, c := range map[string]struct {
		page nvme.LogPage
		n    int
		off  uint64
		st   nvme.Status
	}{
		"discovery of a subsystem":    {nvme.LogDiscovery, 1024, 0, nvme.InvalidLogPage},
		"a page that there is not":    {0x7f, 64, 0, nvme.InvalidLogPage},
		"from behind its end on":      {nvme.LogHealth, 64, 1 << 40, nvme.InvalidField},
		"from an odd byte on":         {nvme.LogHealth, 64, 2, nvme.InvalidField},
		"more than MDTS":              {nvme.LogHealth, 2 << 20, 0, nvme.InvalidField},
		"no namespaces, which is all": {nvme.LogChangedNamespaces, 4096, 0, nvme.Success},
		"no reservations":             {nvme.LogReservation, 64, 0, nvme.Success},
	} {
		_, e, err := logPage(s, h.Admin, c.page, c.n, c.off, false)
		want(t, what, e, err, c.st)
	}
}

// TestEvents: a host hears once of changes until it reads the log page, of each namespace, and of nothing that it does not
// want.
func TestEvents(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	h := s.host(1)
	q := h.Admin
	ask := func() uint16 {
		t.Helper()
		c := q.New(nvme.AdminAsyncEvent)
		if err := q.Send(c); err != nil {
			t.Fatal(err)
		}
		return c.ID()
	}
	first := ask()
	s.server.Resized(subsystemNQN, 1) // which the host does not want to know yet
	e, err := feature(s, q, nvme.FeatureAsyncEvents, nvme.EventNamespaces)
	want(t, "events", e, err, nvme.Success)
	if err := s.store.Resize(8 << 20); err != nil {
		t.Fatal(err)
	}
	s.server.Resized(subsystemNQN, 1)
	e, err = q.Wait(s.ctx, first)
	want(t, "grown", e, err, nvme.Success)
	if nvme.AsyncEvent(e.Result) != nvme.EventNamespaceChanged {
		t.Errorf("event %#x", e.Result)
	}
	second := ask()
	s.server.Resized(subsystemNQN, 1)
	b, e, err := logPage(s, q, nvme.LogChangedNamespaces, 4096, 0, true)
	want(t, "the log, with its event kept", e, err, nvme.Success)
	if le.Uint32(b) != 1 || le.Uint32(b[4:]) != 0 {
		t.Errorf("changed: %x", b[:8])
	}
	<-s.server.Detach(subsystemNQN, 1)
	b, e, err = logPage(s, q, nvme.LogChangedNamespaces, 4096, 0, false)
	want(t, "the log", e, err, nvme.Success)
	if le.Uint32(b) != 1 {
		t.Errorf("changed: %x", b[:8])
	}
	b, e, err = logPage(s, q, nvme.LogChangedNamespaces, 4096, 0, false)
	want(t, "the log again", e, err, nvme.Success)
	if le.Uint32(b) != 0 {
		t.Errorf("changed: %x", b[:8])
	}
	ns, err := target.NewNamespace(target.NamespaceConfig{Medium: s.store, BlockSize: 4096})
	if err == nil {
		err = s.server.Attach(subsystemNQN, 9, ns)
	}
	if err != nil {
		t.Fatal(err)
	}
	e, err = q.Wait(s.ctx, second)
	want(t, "come", e, err, nvme.Success)
	b, e, err = logPage(s, q, nvme.LogChangedNamespaces, 4096, 0, false)
	want(t, "the log", e, err, nvme.Success)
	if le.Uint32(b) != 9 {
		t.Errorf("changed: %x", b[:8])
	}
	third := ask()
	abort := q.New(nvme.AdminAbort)
	abort.SetDWord(10, uint32(third)<<16)
	e, err = q.Do(s.ctx, abort)
	want(t, "abort", e, err, nvme.Success)
	if e.Result != 0 {
		t.Error("the request for an event was not aborted")
	}
	e, err = q.Wait(s.ctx, third)
	want(t, "the request that was aborted", e, err, nvme.AbortedByRequest)
	b, e, err = identify(s, q, nvme.CNSNamespace, 9)
	want(t, "namespace 9", e, err, nvme.Success)
	if le.Uint64(b) != 8<<20/4096 || b[130] != 12 {
		t.Errorf("namespace 9: %x", b[:8])
	}
	<-s.server.Detach(subsystemNQN, 9)
}

// TestDiscovery: a host finds the subsystems that it may connect to, at the address at which it asks, and hears when there
// are others.
func TestDiscovery(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{Admits: func(_ target.Origin, host string) bool { return host == hostNQN }}, nil)
	entries := func(q *nvmetest.Queue) (all []string, generation uint64) {
		t.Helper()
		b, e, err := logPage(s, q, nvme.LogDiscovery, 4096, 0, false)
		want(t, "discovery", e, err, nvme.Success)
		for i := range le.Uint64(b[8:]) {
			x := b[(i+1)*nvme.DiscoveryEntryLen:]
			nqn, _, _ := bytes.Cut(x[256:512], []byte{0})
			all = append(all, string(nqn)+" "+string(bytes.TrimRight(x[512:768], " "))+" "+string(bytes.TrimRight(x[32:64], " ")))
		}
		return all, le.Uint64(b)
	}
	at := " " + s.at.Addr().String() + " " + itoa(int(s.at.Port()))
	connect := func(host string) *nvmetest.Queue {
		t.Helper()
		h, err := nvmetest.Connect(s.ctx, s.at, nil, nvme.DiscoveryNQN, host, id(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Admin.Close)
		return h.Admin
	}
	q := connect(hostNQN)
	all, before := entries(q)
	if len(all) != 2 || all[0] != nvme.DiscoveryNQN+at || all[1] != subsystemNQN+at {
		t.Errorf("%q", all)
	}
	if all, _ := entries(connect(hostNQN + "x")); len(all) != 1 {
		t.Errorf("a host that is not let in sees %q", all)
	}
	e, err := feature(s, q, nvme.FeatureAsyncEvents, nvme.EventDiscovery)
	want(t, "events", e, err, nvme.Success)
	c := q.New(nvme.AdminAsyncEvent)
	if err := q.Send(c); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Set(target.Subsystem{NQN: subsystemNQN + ":more"}); err != nil {
		t.Fatal(err)
	}
	e, err = q.Wait(s.ctx, c.ID())
	want(t, "another subsystem", e, err, nvme.Success)
	if nvme.AsyncEvent(e.Result) != nvme.EventDiscoveryChanged {
		t.Errorf("event %#x", e.Result)
	}
	if all, after := entries(q); len(all) != 3 || after == before {
		t.Errorf("%q, generation %d after %d", all, after, before)
	}
	e, err = q.Do(s.ctx, q.New(nvme.AdminAbort))
	want(t, "abort at a discovery controller", e, err, nvme.InvalidOpcode)
	_, e, err = identify(s, q, nvme.CNSActiveList, 0)
	want(t, "namespaces of discovery", e, err, nvme.InvalidField)
}
