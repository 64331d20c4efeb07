package rdmalib

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is one that uses the engine as the C library does.
type program struct {
	t  *testing.T
	e  *Engine
	fd int32
	pd uint32
	cq uint32

	ring *Ring
	pin  runtime.Pinner
}

func newProgram(t *testing.T) *program {
	t.Helper()
	e, err := New(Config{Protector: transport.LoopbackOnly()})
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, e: e}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
	if err != nil {
		t.Fatal(err)
	}
	p.fd = int32(fd)
	e.OpenCM(p.fd)
	wcs := make([]WC, 64)
	p.ring = &Ring{FD: -1, Mask: 63, WC: &wcs[0]}
	p.pin.Pin(p.ring)
	p.pin.Pin(p.ring.WC)
	var errno syscall.Errno
	p.pd, errno = e.AllocPD()
	p.ok(errno)
	p.cq, errno = e.CreateCQ(p.ring)
	p.ok(errno)
	t.Cleanup(func() {
		e.CloseCM(p.fd)
		unix.Close(fd)
		e.Close()
		p.pin.Unpin()
	})
	return p
}

func (p *program) ok(errno syscall.Errno) {
	p.t.Helper()
	if errno != 0 {
		p.t.Fatal(errno)
	}
}

// command writes one, with room for an answer.
func (p *program) command(number uint32, body []byte, answer []byte) syscall.Errno {
	b := binary.NativeEndian.AppendUint32(nil, number)
	b = binary.NativeEndian.AppendUint16(b, uint16(len(body)))
	b = append(binary.NativeEndian.AppendUint16(b, uint16(len(answer))), body...)
	if len(answer) > 0 {
		p.pin.Pin(&answer[0])
		at := commands[number].answered
		if number == cmdGetEvent {
			at = 0
		}
		binary.NativeEndian.PutUint64(b[headerLen+at:], uint64(uintptr(unsafe.Pointer(&answer[0]))))
	}
	if number == cmdGetEvent {
		return p.e.EventCM(p.fd, b)
	}
	return p.e.CommandCM(p.fd, b)
}

// id makes an ID with a UID.
func (p *program) id(uid uint64) uint32 {
	p.t.Helper()
	body, answer := make([]byte, 24), make([]byte, 4)
	binary.NativeEndian.PutUint64(body, uid)
	binary.NativeEndian.PutUint16(body[16:], portSpaceTCP)
	p.ok(p.command(cmdCreateID, body, answer))
	return binary.NativeEndian.Uint32(answer)
}

type told struct {
	uid     uint64
	id      uint32
	kind    uint32
	status  int32
	private []byte
	param   []byte
}

// event waits for the next.
func (p *program) event() told {
	p.t.Helper()
	poll := []unix.PollFd{{Fd: p.fd, Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(time.Minute.Milliseconds()))
		if n == 1 {
			break
		} else if err != unix.EINTR {
			p.t.Fatalf("no event: %v", err)
		}
	}
	answer := make([]byte, eventLen)
	p.ok(p.command(cmdGetEvent, make([]byte, 8), answer))
	param := answer[20:]
	return told{binary.NativeEndian.Uint64(answer), binary.NativeEndian.Uint32(answer[8:]), binary.NativeEndian.Uint32(answer[12:]),
		int32(binary.NativeEndian.Uint32(answer[16:])), param[8 : 8+int(param[264])], param}
}

func (p *program) want(kind uint32) told {
	p.t.Helper()
	ev := p.event()
	if ev.kind != kind {
		p.t.Fatalf("event %d, status %d; want %d", ev.kind, ev.status, kind)
	}
	return ev
}

func (p *program) qp() uint32 {
	p.t.Helper()
	h, errno := p.e.CreateQP(&QPConfig{PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 8, MaxRecv: 8})
	p.ok(errno)
	return h
}

func (p *program) listen(at string) (id uint32, to netip.AddrPort) {
	p.t.Helper()
	id = p.id(1)
	body := make([]byte, 40)
	putAddr(body[8:], netip.MustParseAddrPort(at))
	binary.NativeEndian.PutUint32(body[36:], id)
	p.ok(p.command(cmdBindIP, body, nil))
	body = make([]byte, 8)
	binary.NativeEndian.PutUint32(body, id)
	p.ok(p.command(cmdListen, body, nil))
	return id, p.addr(id)
}

// addr is the local address of an ID.
func (p *program) addr(id uint32) netip.AddrPort {
	p.t.Helper()
	body, answer := make([]byte, 16), make([]byte, queryRouteLen)
	binary.NativeEndian.PutUint32(body[8:], id)
	p.ok(p.command(cmdQueryRoute, body, answer))
	return addrPort(answer[136:164])
}

// resolve has an ID know where it goes.
func (p *program) resolve(id uint32, to netip.AddrPort) {
	p.t.Helper()
	body := make([]byte, 64)
	putAddr(body[28:], to)
	binary.NativeEndian.PutUint32(body[56:], id)
	p.ok(p.command(cmdResolveIP, body, nil))
	p.want(cmAddrResolved)
	body = make([]byte, 8)
	binary.NativeEndian.PutUint32(body, id)
	p.ok(p.command(cmdResolveRoute, body, nil))
	p.want(cmRouteResolved)
}

// param is struct rdma_ucm_conn_param.
func param(qp uint32, private string, responder, initiator byte) []byte {
	b := make([]byte, connParamLen)
	binary.NativeEndian.PutUint32(b, qp)
	b[264] = byte(copy(b[8:264], private))
	b[266], b[267] = responder, initiator
	return b
}

func (p *program) connect(id uint32, param []byte) syscall.Errno {
	body := make([]byte, 288)
	copy(body, param)
	binary.NativeEndian.PutUint32(body[272:], id)
	return p.command(cmdConnect, body, nil)
}

func (p *program) accept(id uint32, uid uint64, param []byte) syscall.Errno {
	body := make([]byte, 296)
	binary.NativeEndian.PutUint64(body, uid)
	copy(body[8:], param)
	binary.NativeEndian.PutUint32(body[280:], id)
	return p.command(cmdAccept, body, nil)
}

// destroy returns how many events of an ID the program had.
func (p *program) destroy(id uint32) uint32 {
	p.t.Helper()
	body, answer := make([]byte, 16), make([]byte, 4)
	binary.NativeEndian.PutUint32(body[8:], id)
	p.ok(p.command(cmdDestroyID, body, answer))
	return binary.NativeEndian.Uint32(answer)
}

// completion waits for the next.
func (p *program) completion() WC {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		if p.ring.Head != load(&p.ring.Tail) {
			wc := p.e.cqs.get(p.cq).wcs[p.ring.Head&p.ring.Mask]
			atomic.AddUint64(&p.ring.Head, 1)
			return wc
		}
	}
	p.t.Fatal("no completion")
	return WC{}
}

// TestConnection: what a client and a server see, from resolving to the end, and what they pay for.
func TestConnection(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, client := newProgram(t), newProgram(t)
		_, to := server.listen(at)
		id := client.id(2)
		client.resolve(id, to)
		if a := client.addr(id); a.Addr() != to.Addr() {
			t.Errorf("the local address is %v", a)
		}
		cq := client.qp()
		client.ok(client.connect(id, param(cq, "hello", 3, 5)))
		req := server.want(cmConnectRequest)
		if req.uid != 1 || string(req.private) != "hello" || req.param[266] != 5 || req.param[267] != 3 {
			t.Errorf("the request: UID %d, %q, responder resources %d, initiator depth %d", req.uid, req.private, req.param[266], req.param[267])
		}
		sq := server.qp()
		buf := make([]byte, 64)
		server.pin.Pin(&buf[0])
		lkey, _, errno := server.e.RegMR(server.pd, unsafe.Pointer(&buf[0]), 64, uint64(uintptr(unsafe.Pointer(&buf[0]))), accessLocalWrite)
		server.ok(errno)
		server.ok(server.e.PostRecv(sq, 77, &SGE{Addr: uint64(uintptr(unsafe.Pointer(&buf[0]))), Len: 64, LKey: lkey}, 1))
		server.ok(server.accept(req.id, 3, param(sq, "welcome", 5, 3)))
		if ev := server.want(cmEstablished); ev.uid != 3 || ev.id != req.id {
			t.Errorf("established for UID %d, ID %d", ev.uid, ev.id)
		}
		if ev := client.want(cmEstablished); string(ev.private) != "welcome" || ev.uid != 2 {
			t.Errorf("established with %q for UID %d", ev.private, ev.uid)
		}
		text := []byte("inline, and not registered")
		client.pin.Pin(&text[0])
		s := Send{ID: 5, Op: SendSend, Flags: FlagSignaled | FlagInline, NSGE: 1, SG: &SGE{Addr: uint64(uintptr(unsafe.Pointer(&text[0]))), Len: uint32(len(text))}}
		client.pin.Pin(s.SG)
		if n, errno := client.e.PostSend(cq, &s, 1); n != 1 || errno != 0 {
			t.Fatalf("%d posted, %v", n, errno)
		}
		if wc := client.completion(); wc.ID != 5 || wc.Status != 0 || wc.Opcode != opcodeSend || wc.QPNum != cq {
			t.Errorf("the send: %+v", wc)
		}
		if wc := server.completion(); wc.ID != 77 || wc.Status != 0 || wc.Opcode != opcodeRecv || string(buf[:wc.Len]) != string(text) {
			t.Errorf("the receive: %+v, %q", wc, buf)
		}
		server.ok(server.e.PostRecv(sq, 78, &SGE{}, 0))
		body := binary.NativeEndian.AppendUint32(nil, id)
		client.ok(client.command(cmdDisconnect, body, nil))
		client.want(cmDisconnected)
		server.want(cmDisconnected)
		if wc := server.completion(); wc.ID != 78 || wc.Status != statusFlush {
			t.Errorf("a receive that nothing came for: %+v", wc)
		}
		if n := client.destroy(id); n != 4 {
			t.Errorf("%d events of the client's ID were taken, want 4", n)
		}
		client.ok(client.e.DestroyQP(cq))
		server.ok(server.e.DestroyQP(sq))
		server.ok(server.e.DeregMR(lkey))
		server.ok(server.e.DestroyCQ(server.cq))
		server.ok(server.e.DeallocPD(server.pd))
		if u := server.e.dev.Usage(); u.Streams+u.PDs+u.MRs+u.CQEntries != 0 {
			t.Errorf("in use afterwards: %+v", u)
		}
	}
}

// TestRejected: the client is told so, with the server's words, and what it has posted is flushed.
func TestRejected(t *testing.T) {
	server, client := newProgram(t), newProgram(t)
	_, to := server.listen("127.0.0.1:0")
	id := client.id(2)
	client.resolve(id, to)
	q := client.qp()
	client.ok(client.e.PostRecv(q, 9, &SGE{}, 0))
	client.ok(client.connect(id, param(q, "", 0, 0)))
	req := server.want(cmConnectRequest)
	body := make([]byte, 264)
	binary.NativeEndian.PutUint32(body, req.id)
	body[4] = byte(copy(body[8:], "no"))
	server.ok(server.command(cmdReject, body, nil))
	if ev := client.want(cmRejected); string(ev.private) != "no" || ev.status != -int32(syscall.ECONNREFUSED) {
		t.Errorf("rejected with %q, status %d", ev.private, ev.status)
	}
	if wc := client.completion(); wc.ID != 9 || wc.Status != statusFlush {
		t.Errorf("%+v", wc)
	}
	if errno := server.command(cmdReject, body, nil); errno != syscall.EINVAL {
		t.Errorf("rejected twice: %v", errno)
	}
}

// TestUnansweredRequestsEnd: a listener that goes away leaves nobody waiting.
func TestUnansweredRequestsEnd(t *testing.T) {
	server, client := newProgram(t), newProgram(t)
	ln, to := server.listen("127.0.0.1:0")
	id := client.id(2)
	client.resolve(id, to)
	client.ok(client.connect(id, param(client.qp(), "", 0, 0)))
	poll := []unix.PollFd{{Fd: server.fd, Events: unix.POLLIN}}
	unix.Poll(poll, int(time.Minute.Milliseconds()))
	if n := server.destroy(ln); n != 0 {
		t.Errorf("%d events were taken", n)
	}
	if n, _ := unix.Poll(poll, 0); n != 0 {
		t.Error("the file still says that there is an event")
	}
	if ev := client.event(); ev.kind != cmRejected && ev.kind != cmConnectError {
		t.Errorf("event %d", ev.kind)
	}
	if len(server.e.cm.ids) != 0 {
		t.Errorf("%d IDs are left", len(server.e.cm.ids))
	}
}

// TestCommandsThatAreWrong have an errno, and change nothing.
func TestCommandsThatAreWrong(t *testing.T) {
	p := newProgram(t)
	id := p.id(1)
	for name, x := range map[string]struct {
		number uint32
		body   []byte
		answer []byte
		want   syscall.Errno
	}{
		"unknown":                  {99, make([]byte, 64), nil, syscall.ENOSYS},
		"multicast":                {cmdJoinIPMulticast, make([]byte, 64), nil, syscall.EOPNOTSUPP},
		"short":                    {cmdConnect, make([]byte, 200), nil, syscall.EINVAL},
		"of no ID":                 {cmdListen, make([]byte, 8), nil, syscall.ENOENT},
		"without an answer's room": {cmdDestroyID, make([]byte, 16), nil, syscall.EFAULT},
		"UD":                       {cmdCreateID, append(make([]byte, 16), 0x11, 1, 0, 0, 0, 0, 0, 0), make([]byte, 4), syscall.EOPNOTSUPP},
		"connect to nowhere":       {cmdConnect, binary.NativeEndian.AppendUint32(make([]byte, 272), id), nil, syscall.EINVAL},
		"disconnected before":      {cmdDisconnect, binary.NativeEndian.AppendUint32(nil, id), nil, syscall.EINVAL},
		"no address":               {cmdBindIP, binary.NativeEndian.AppendUint32(make([]byte, 36), id), nil, syscall.EAFNOSUPPORT},
	} {
		if got := p.command(x.number, x.body, x.answer); got != x.want {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 7), {1, 0, 0, 0, 255, 255, 0, 0}} {
		if errno := p.e.CommandCM(p.fd, b); errno != syscall.EINVAL {
			t.Errorf("%x: %v", b, errno)
		}
	}
	if errno := p.command(cmdGetEvent, make([]byte, 8), make([]byte, eventLen)); errno != syscall.EAGAIN {
		t.Errorf("an event of nothing: %v", errno)
	}
	if errno := p.e.CommandCM(p.fd+1000, append([]byte{cmdListen, 0, 0, 0, 8, 0, 0, 0}, make([]byte, 8)...)); errno != syscall.EBADF {
		t.Errorf("another file: %v", errno)
	}
}

// TestMemoryIsChecked: keys that there are not, and places outside of memory, are refused by the post.
func TestMemoryIsChecked(t *testing.T) {
	p := newProgram(t)
	buf := make([]byte, 100)
	p.pin.Pin(&buf[0])
	base := uint64(uintptr(unsafe.Pointer(&buf[0])))
	lkey, _, errno := p.e.RegMR(p.pd, unsafe.Pointer(&buf[0]), 100, base, accessLocalWrite)
	p.ok(errno)
	q := p.qp()
	for name, s := range map[string]SGE{
		"another key": {base, 1, lkey + 1}, "no key": {base, 1, 0}, "before": {base - 1, 1, lkey}, "behind": {base + 100, 1, lkey},
		"longer": {base + 50, 51, lkey}, "wraps": {^uint64(0), 1, lkey}, "all of it and more": {base, 1<<32 - 1, lkey},
	} {
		if errno := p.e.PostRecv(q, 1, &s, 1); errno != syscall.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
	if errno := p.e.PostRecv(q, 1, &SGE{}, 5); errno != syscall.EINVAL {
		t.Errorf("a list of 5: %v", errno)
	}
	p.ok(p.e.PostRecv(q, 1, &SGE{base, 100, lkey}, 1))
	p.ok(p.e.DeregMR(lkey))
	if errno := p.e.PostRecv(q, 1, &SGE{base, 1, lkey}, 1); errno != syscall.EINVAL {
		t.Errorf("a key that was given back: %v", errno)
	}
	for name, access := range map[string]uint32{"on demand": accessOnDemand, "unknown": 1 << 8, "remote write alone": accessRemoteWrite} {
		if _, _, errno := p.e.RegMR(p.pd, unsafe.Pointer(&buf[0]), 100, base, access); errno == 0 {
			t.Errorf("memory with access %s was registered", name)
		}
	}
}

// TestHandlesAreNotUsedAgainSoon: one that was given back is nothing, although its slot is another's.
func TestHandlesAreNotUsedAgainSoon(t *testing.T) {
	var tab table[int]
	seen := map[uint32]bool{}
	for i := range 3 << slotBits {
		h := tab.add(&i)
		if h == 0 || seen[h] {
			t.Fatalf("handle %#x comes again after %d", h, i)
		}
		seen[h] = true
		if tab.get(h) != &i || tab.remove(h) != &i || tab.get(h) != nil || tab.remove(h) != nil {
			t.Fatal("a handle is not its object's")
		}
	}
}

// TestLayouts: what the C library has in memory is what the engine reads there; c/load.c has the same numbers.
func TestLayouts(t *testing.T) {
	var r Ring
	for name, x := range map[string][2]uintptr{
		"WC": {unsafe.Sizeof(WC{}), 56}, "SGE": {unsafe.Sizeof(SGE{}), 16}, "Send": {unsafe.Sizeof(Send{}), 80}, "QPConfig": {unsafe.Sizeof(QPConfig{}), 32},
		"Ring": {unsafe.Sizeof(r), 256}, "Ring.Head": {unsafe.Offsetof(r.Head), 64}, "Ring.Armed": {unsafe.Offsetof(r.Armed), 128}, "Ring.Mask": {unsafe.Offsetof(r.Mask), 160},
	} {
		if x[0] != x[1] {
			t.Errorf("%s: %d, want %d", name, x[0], x[1])
		}
	}
}

// FuzzCommands: whatever a program writes to the device has an answer, and harms nothing. Addresses are the program's
// own affair: they are replaced by good ones.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{cmdCreateID, 24, 0, 0, 6, 1}, []byte{cmdBindIP, 40, 2, 0, 0, 0, 127, 0, 0, 1})
	f.Add([]byte{cmdListen, 8, 1, 0, 0, 0}, []byte{cmdMigrateID, 16, 0, 0})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		p := newProgram(t)
		p.id(1)
		room := make([]byte, 1<<16)
		p.pin.Pin(&room[0])
		at := uint64(uintptr(unsafe.Pointer(&room[0])))
		for _, b := range [][]byte{first, second, first} {
			if len(b) < 2 {
				continue
			}
			number, body := uint32(b[0]), append(bytes.Clone(b[2:]), make([]byte, int(b[1])*2)...)
			if x, ok := commands[number]; ok && x.answered >= 0 && len(body) >= x.answered+8 {
				binary.NativeEndian.PutUint64(body[x.answered:], at)
			}
			if number == cmdSetOption && len(body) >= 8 {
				binary.NativeEndian.PutUint64(body, at)
			}
			if number == cmdConnect || number == cmdResolveIP || number == cmdResolveAddr {
				continue // they go to the network
			}
			head := binary.NativeEndian.AppendUint32(nil, number)
			head = binary.NativeEndian.AppendUint16(head, uint16(len(body)))
			head = binary.NativeEndian.AppendUint16(head, uint16(len(room)-1))
			p.e.CommandCM(p.fd, append(head, body...))
		}
	})
}

func load(p *uint64) uint64 { return atomic.LoadUint64(p) }
