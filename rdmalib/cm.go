package rdmalib

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ironwarp/ironwarp/internal/turn"
	"github.com/ironwarp/ironwarp/verbs"
)

// NodeGUID is the device's, in the order of the network.
const NodeGUID = 0x0249570000000001

// Commands of /dev/infiniband/rdma_cm (rdma/rdma_user_cm.h).
const (
	cmdCreateID = iota
	cmdDestroyID
	cmdBindIP
	cmdResolveIP
	cmdResolveRoute
	cmdQueryRoute
	cmdConnect
	cmdListen
	cmdAccept
	cmdReject
	cmdDisconnect
	cmdInitQPAttr
	cmdGetEvent
	cmdGetOption
	cmdSetOption
	cmdNotify
	cmdJoinIPMulticast
	cmdLeaveMulticast
	cmdMigrateID
	cmdQuery
	cmdBind
	cmdResolveAddr
	cmdJoinMulticast
)

// Numbers of enum rdma_cm_event_type.
const (
	cmAddrResolved   = 0
	cmAddrError      = 1
	cmRouteResolved  = 2
	cmConnectRequest = 4
	cmConnectError   = 6
	cmUnreachable    = 7
	cmRejected       = 8
	cmEstablished    = 9
	cmDisconnected   = 10
)

const (
	portSpaceTCP = 0x0106
	portSpaceIB  = 0x013f

	maxPrivate = 255 // bytes: their number has one byte, and the field 256

	headerLen     = 8
	connParamLen  = 272
	eventLen      = 336
	eventECE      = 328
	qpAttrLen     = 144
	queryRouteLen = 208
	queryAddrLen  = 280
)

// cmDevice is the emulated device: channels, which are files of the program, and the IDs on them.
type cmDevice struct {
	mu    sync.Mutex // guards the fields below it, and what they lead to
	chans map[int32]*channel
	ids   map[uint32]*cmID
	last  uint32
	// dialling are those who dial last to each address: programs rely on their requests coming in the order in which they
	// connect, as the kernel sends them, and on the answers, too (perftest -q).
	dialling map[netip.AddrPort]*dialling
	line     turn.Line
}

// channel is an open file of the device. fd is an eventfd that counts its events.
type channel struct {
	fd     int32
	events []*event
}

// event is one that the program has not taken yet.
type event struct {
	about   *cmID // whose events it counts to: of a request the listener
	kind    uint32
	status  int32
	private []byte
	child   *cmID // of a request
	// The depths as the program's side has them: what the peer asks for (responder resources), and what it takes.
	responder, initiator int
}

// cmID is an rdma_cm_id.
type cmID struct {
	handle     uint32
	uid64      uint64 // what the program calls it
	ch         *channel
	src, dst   netip.AddrPort
	bound      bool
	familyOnly bool
	ln         *verbs.Listener
	req        *verbs.ConnRequest
	qp         *qp
	cancel     func()
	reported   uint32
	gone       bool
}

func (d *cmDevice) init() {
	d.chans, d.ids, d.dialling = map[int32]*channel{}, map[uint32]*cmID{}, map[netip.AddrPort]*dialling{}
}

func (d *cmDevice) close() {
	d.mu.Lock()
	ids := make([]*cmID, 0, len(d.ids))
	for _, id := range d.ids {
		ids = append(ids, id)
	}
	d.mu.Unlock()
	for _, id := range ids {
		d.end(id)
	}
}

// OpenCM opens the device as a file, fd, which is an eventfd (EFD_SEMAPHORE): it counts the events to be had.
func (e *Engine) OpenCM(fd int32) {
	e.cm.mu.Lock()
	defer e.cm.mu.Unlock()
	e.cm.chans[fd] = &channel{fd: fd}
}

// CloseCM closes a file. IDs on it end.
func (e *Engine) CloseCM(fd int32) {
	d := &e.cm
	d.mu.Lock()
	c := d.chans[fd]
	delete(d.chans, fd)
	var ids []*cmID
	for _, id := range d.ids {
		if id.ch == c {
			ids = append(ids, id)
		}
	}
	d.mu.Unlock()
	for _, id := range ids {
		d.end(id)
	}
}

// command is a command that a program has written, and where its answer goes.
type command struct {
	body []byte
	out  uint64 // the address, of the process
	max  int    // bytes of it
}

func (c *command) u32(at int) uint32 { return binary.NativeEndian.Uint32(c.body[at:]) }
func (c *command) u64(at int) uint64 { return binary.NativeEndian.Uint64(c.body[at:]) }

// answer stores what the program has room for.
func (c *command) answer(b []byte) {
	n := min(len(b), c.max)
	if n > 0 {
		copy(unsafe.Slice((*byte)(pointerTo(c.out)), n), b)
	}
}

// lengths are how much of each command there has to be, at least: newer programs write more. answered says where the address of
// the answer is; -1: there is none.
var commands = map[uint32]struct{ length, answered int }{
	cmdCreateID: {19, 8}, cmdDestroyID: {12, 0}, cmdBindIP: {40, -1}, cmdResolveIP: {64, -1}, cmdResolveRoute: {8, -1},
	cmdQueryRoute: {12, 0}, cmdConnect: {276, -1}, cmdListen: {8, -1}, cmdAccept: {284, -1}, cmdReject: {264, -1}, cmdDisconnect: {4, -1},
	cmdInitQPAttr: {16, 0}, cmdSetOption: {24, -1}, cmdNotify: {8, -1}, cmdMigrateID: {16, 0}, cmdQuery: {16, 0},
	cmdBind: {136, -1}, cmdResolveAddr: {272, -1},
}

// parse reads a command's header.
func parse(b []byte) (number uint32, c command, errno syscall.Errno) {
	if len(b) < headerLen {
		return 0, c, syscall.EINVAL
	}
	number = binary.NativeEndian.Uint32(b)
	n := int(binary.NativeEndian.Uint16(b[4:]))
	if n > len(b)-headerLen {
		return 0, c, syscall.EINVAL
	}
	c.body, c.max = b[headerLen:headerLen+n], int(binary.NativeEndian.Uint16(b[6:]))
	return number, c, 0
}

// CommandCM carries out a command that a program has written to a file, but for getting an event.
func (e *Engine) CommandCM(fd int32, b []byte) syscall.Errno {
	number, c, errno := parse(b)
	if errno != 0 {
		return errno
	}
	known, ok := commands[number]
	switch {
	case number == cmdJoinIPMulticast, number == cmdJoinMulticast, number == cmdLeaveMulticast:
		return syscall.EOPNOTSUPP // iWARP has no multicast
	case !ok:
		return syscall.ENOSYS
	case len(c.body) < known.length:
		return syscall.EINVAL
	}
	if known.answered >= 0 {
		if c.out = c.u64(known.answered); c.out == 0 {
			return syscall.EFAULT
		}
	}
	d := &e.cm
	d.mu.Lock()
	ch := d.chans[fd]
	if ch == nil {
		d.mu.Unlock()
		return syscall.EBADF
	}
	if number == cmdCreateID {
		defer d.mu.Unlock()
		return d.createLocked(ch, &c)
	}
	at := map[uint32]int{cmdDestroyID: 8, cmdBindIP: 36, cmdResolveIP: 56, cmdQueryRoute: 8, cmdConnect: 272, cmdAccept: 280, cmdInitQPAttr: 8, cmdSetOption: 8, cmdMigrateID: 8, cmdQuery: 8}[number]
	id := d.ids[c.u32(at)]
	if id == nil {
		d.mu.Unlock()
		return syscall.ENOENT
	}
	switch number {
	case cmdDestroyID:
		d.mu.Unlock()
		c.answer(binary.NativeEndian.AppendUint32(nil, d.end(id)))
		return 0
	case cmdAccept:
		d.mu.Unlock()
		return e.accept(id, &c)
	case cmdReject:
		d.mu.Unlock()
		return e.reject(id, c.body[8:], int(c.body[4]))
	case cmdListen:
		d.mu.Unlock()
		return e.listen(id, int(c.u32(4)))
	}
	defer d.mu.Unlock()
	switch number {
	case cmdBindIP:
		return id.bindLocked(addrPort(c.body[8:36]))
	case cmdBind:
		return id.bindLocked(addrPort(c.body[8:136]))
	case cmdResolveIP:
		return d.resolveLocked(id, addrPort(c.body[:28]), addrPort(c.body[28:56]))
	case cmdResolveAddr:
		return d.resolveLocked(id, addrPort(c.body[16:144]), addrPort(c.body[144:272]))
	case cmdResolveRoute:
		if !id.dst.IsValid() {
			return syscall.EINVAL
		}
		d.putLocked(&event{about: id, kind: cmRouteResolved})
	case cmdQueryRoute:
		c.answer(id.route())
	case cmdQuery:
		if c.u32(12) != 0 { // RDMA_USER_CM_QUERY_ADDR
			return syscall.EOPNOTSUPP
		}
		c.answer(id.addresses())
	case cmdConnect:
		return e.connectLocked(id, &c)
	case cmdDisconnect:
		if id.qp == nil {
			return syscall.EINVAL
		}
		id.qp.v.Close()
	case cmdInitQPAttr:
		c.answer(qpAttr(c.u32(12)))
	case cmdSetOption:
		const levelID, afOnly = 0, 2
		if c.u32(12) == levelID && c.u32(16) == afOnly && c.u32(20) == 4 && c.u64(0) != 0 {
			id.familyOnly = *(*int32)(pointerTo(c.u64(0))) != 0
		}
	case cmdMigrateID:
		d.migrateLocked(id, ch)
		c.answer(binary.NativeEndian.AppendUint32(nil, id.reported))
	}
	return 0
}

// EventCM stores the oldest event of a file where a command to get one wants it. It fails with EAGAIN if there is none.
func (e *Engine) EventCM(fd int32, b []byte) syscall.Errno {
	number, c, errno := parse(b)
	switch {
	case errno != 0:
		return errno
	case number != cmdGetEvent || len(c.body) < 8:
		return syscall.EINVAL
	}
	if c.out = c.u64(0); c.out == 0 {
		return syscall.EFAULT
	}
	d := &e.cm
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := d.chans[fd]
	if ch == nil {
		return syscall.EBADF
	}
	if len(ch.events) == 0 {
		return syscall.EAGAIN
	}
	ev := ch.events[0]
	ch.events = ch.events[1:]
	ch.uncount()
	ev.about.reported++
	c.answer(ev.bytes())
	return 0
}

// bytes is struct rdma_ucm_event_resp.
func (ev *event) bytes() []byte {
	b := make([]byte, eventLen)
	id := ev.about
	binary.NativeEndian.PutUint64(b, id.uid64)
	handle := id.handle
	if ev.child != nil {
		handle = ev.child.handle // the UID is the listener's
	}
	binary.NativeEndian.PutUint32(b[8:], handle)
	binary.NativeEndian.PutUint32(b[12:], ev.kind)
	binary.NativeEndian.PutUint32(b[16:], uint32(ev.status))
	p := b[20:]
	if id.qp != nil {
		binary.NativeEndian.PutUint32(p, id.qp.num)
	}
	n := copy(p[8:8+maxPrivate], ev.private)
	p[264] = byte(n)
	p[266], p[267] = byte(ev.responder), byte(ev.initiator)
	return b
}

// putLocked gives an event to the program.
func (d *cmDevice) putLocked(ev *event) {
	id := ev.about
	if id.gone || id.ch == nil {
		return
	}
	id.ch.events = append(id.ch.events, ev)
	id.ch.count()
}

// count and uncount keep the eventfd at the number of events: both are called with the device locked, so neither waits.
func (ch *channel) count() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	syscall.Write(int(ch.fd), one[:])
}

func (ch *channel) uncount() {
	var one [8]byte
	syscall.Read(int(ch.fd), one[:])
}

func (d *cmDevice) put(ev *event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.putLocked(ev)
}

func (d *cmDevice) newLocked(ch *channel) *cmID {
	for d.last++; d.last == 0 || d.ids[d.last] != nil; d.last++ {
	}
	id := &cmID{handle: d.last, ch: ch}
	d.ids[id.handle] = id
	return id
}

func (d *cmDevice) createLocked(ch *channel, c *command) syscall.Errno {
	if ps := binary.NativeEndian.Uint16(c.body[16:]); ps != portSpaceTCP && ps != portSpaceIB {
		return syscall.EOPNOTSUPP // UD is not iWARP's
	}
	id := d.newLocked(ch)
	id.uid64 = c.u64(0)
	c.answer(binary.NativeEndian.AppendUint32(nil, id.handle))
	return 0
}

// end destroys an ID, and returns how many of its events the program has taken.
func (d *cmDevice) end(id *cmID) uint32 {
	d.mu.Lock()
	if id.gone {
		d.mu.Unlock()
		return id.reported
	}
	id.gone = true
	delete(d.ids, id.handle)
	children := d.dropLocked(id, func(*event) bool { return false })
	ln, req, qp, cancel := id.ln, id.req, id.qp, id.cancel
	id.req = nil
	d.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if ln != nil {
		ln.Close()
	}
	if req != nil {
		refuse(req, nil)
	}
	if qp != nil {
		qp.v.Close()
	}
	for _, c := range children {
		d.end(c)
	}
	return id.reported
}

// dropLocked takes the events of an ID from its channel, but for those that stay. It returns the IDs of requests that nobody will
// hear of.
func (d *cmDevice) dropLocked(id *cmID, stays func(*event) bool) (children []*cmID) {
	if id.ch == nil {
		return nil
	}
	kept := id.ch.events[:0:0]
	for _, ev := range id.ch.events {
		if ev.about != id || stays(ev) {
			kept = append(kept, ev)
			continue
		}
		id.ch.uncount()
		if ev.child != nil {
			children = append(children, ev.child)
		}
	}
	id.ch.events = kept
	return children
}

// migrateLocked moves an ID, and its events, to another channel.
func (d *cmDevice) migrateLocked(id *cmID, to *channel) {
	var mine []*event
	for _, ev := range id.ch.events {
		if ev.about == id {
			mine = append(mine, ev)
		}
	}
	d.dropLocked(id, func(*event) bool { return false })
	id.ch = to
	for _, ev := range mine {
		d.putLocked(ev)
	}
}

// bindLocked gives an ID a local address.
func (id *cmID) bindLocked(at netip.AddrPort) syscall.Errno {
	switch {
	case !at.IsValid():
		return syscall.EAFNOSUPPORT
	case id.bound:
		return syscall.EINVAL
	}
	if !at.Addr().IsUnspecified() {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 0)))
		if err != nil {
			return syscall.EADDRNOTAVAIL
		}
		c.Close()
	}
	id.src, id.bound = at, true
	return 0
}

// resolveLocked finds the local address from which another is reached.
func (d *cmDevice) resolveLocked(id *cmID, src, dst netip.AddrPort) syscall.Errno {
	if !dst.IsValid() {
		return syscall.EAFNOSUPPORT
	}
	if dst.Addr().IsUnspecified() { // as TCP has it
		loop := netip.IPv6Loopback()
		if dst.Addr().Is4() {
			loop = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		dst = netip.AddrPortFrom(loop, dst.Port())
	}
	if src.IsValid() && !id.bound {
		if errno := id.bindLocked(src); errno != 0 {
			return errno
		}
	}
	id.dst = dst
	if !id.bound || id.src.Addr().IsUnspecified() {
		// A port of which no program has streams: while there is no SA a guard refuses to connect to those.
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst.Addr(), 1)))
		if err != nil {
			d.putLocked(&event{about: id, kind: cmAddrError, status: -int32(syscall.EHOSTUNREACH)})
			return 0
		}
		local := c.LocalAddr().(*net.UDPAddr).AddrPort()
		c.Close()
		port := uint16(0)
		if id.bound {
			port = id.src.Port()
		}
		id.src, id.bound = netip.AddrPortFrom(local.Addr().Unmap(), port), true
	}
	d.putLocked(&event{about: id, kind: cmAddrResolved})
	return 0
}

// onDevice reports whether the ID's address says which device it is on; there is one.
func (id *cmID) onDevice() bool {
	return id.bound && (id.dst.IsValid() || !id.src.Addr().IsUnspecified())
}

// route is struct rdma_ucm_query_route_resp.
func (id *cmID) route() []byte {
	b := make([]byte, queryRouteLen)
	putAddr(b[136:], id.src)
	putAddr(b[164:], id.dst)
	if id.onDevice() {
		binary.BigEndian.PutUint64(b, NodeGUID)
		b[196] = 1
	}
	return b
}

// addresses is struct rdma_ucm_query_addr_resp.
func (id *cmID) addresses() []byte {
	b := make([]byte, queryAddrLen)
	if id.onDevice() {
		binary.BigEndian.PutUint64(b, NodeGUID)
		b[8] = 1
	}
	binary.NativeEndian.PutUint16(b[10:], 0xffff)
	binary.NativeEndian.PutUint16(b[12:], uint16(putAddr(b[16:], id.src)))
	binary.NativeEndian.PutUint16(b[14:], uint16(putAddr(b[144:], id.dst)))
	return b
}

// qpAttr is struct ib_uverbs_qp_attr for a state: what the C library then has ibv_modify_qp do.
func qpAttr(state uint32) []byte {
	b := make([]byte, qpAttrLen)
	const maskState, maskAccess, maskPort = 1, 1 << 3, 1 << 5
	mask := uint32(maskState)
	if state == 1 { // INIT
		mask |= maskAccess | maskPort
		binary.NativeEndian.PutUint32(b[36:], accessLocalWrite|accessRemoteWrite|accessRemoteRead|accessAtomic)
		b[133] = 1
	}
	binary.NativeEndian.PutUint32(b, mask)
	binary.NativeEndian.PutUint32(b[4:], state)
	return b
}

// addrPort reads a struct sockaddr_in or sockaddr_in6. The result is invalid if it is neither.
func addrPort(b []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
	}
	return netip.AddrPort{}
}

// putAddr writes an address as struct sockaddr_in or sockaddr_in6, and returns its length; 0: there is none.
func putAddr(b []byte, a netip.AddrPort) int {
	switch {
	case !a.IsValid():
		return 0
	case a.Addr().Is4():
		binary.NativeEndian.PutUint16(b, syscall.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
		return 16
	}
	binary.NativeEndian.PutUint16(b, syscall.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	ip := a.Addr().As16()
	copy(b[8:], ip[:])
	return 28
}
