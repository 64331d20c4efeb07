package vhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// socket is a Unix socket's connection.
type socket interface {
	net.Conn
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, addr *net.UnixAddr, err error)
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
	SyscallConn() (syscall.RawConn, error)
}

// frontend is one front end, from its connection to its last request's end. What no mutex
// guards belongs to the goroutine that receives messages.
type frontend struct {
	srv    *Server
	nc     socket
	disk   disk
	ctx    context.Context
	cancel context.CancelFunc
	gone   atomic.Bool // its memory is touched no more

	touching atomic.Int64 // goroutines that place data in its memory, or use the rings there

	features uint64 // of the disk, all that there are
	proto    uint64 // chosen
	mem      *memory
	log      *region // has the logs of all queues; nil: none
	logged   inflight
	queues   [maxQueues]queue
	running  sync.WaitGroup // goroutines of queues

	errMu   sync.Mutex // guards the fields below it; innermost
	err     error      // why it ends
	backend int        // the descriptor for requests of this side, -1: none
}

func newFrontend(ctx context.Context, s *Server, nc socket) *frontend {
	f := &frontend{srv: s, nc: nc, backend: -1}
	f.ctx, f.cancel = context.WithCancel(ctx)
	f.disk.Device, f.disk.size, f.disk.serial = s.cfg.Device, &s.size, s.cfg.Serial
	f.disk.geo = s.cfg.Device.Geometry()
	if d, ok := s.cfg.Device.(block.MultiUser); ok {
		f.disk.Device = d.NewUser()
	}
	f.features = featuresOf(&f.disk.geo)
	f.disk.setChosen(0, true)
	f.mem, _ = newMemory(nil)
	for i := range f.queues {
		f.queues[i].index = i
	}
	return f
}

// touch reports whether the front end's memory may be touched: then touched follows, before
// which nobody hangs up on the front end.
func (f *frontend) touch() bool {
	f.touching.Add(1)
	if f.gone.Load() {
		f.touching.Add(-1)
		return false
	}
	return true
}

func (f *frontend) touched() { f.touching.Add(-1) }

// fail ends the front end. Its memory is not touched any more once it is hung up on, when it may
// have another back end, which finds there what is under way: what is being placed there has been
// placed before.
func (f *frontend) fail(err error) {
	f.errMu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.errMu.Unlock()
	f.gone.Store(true)
	for f.touching.Load() > 0 {
		runtime.Gosched()
	}
	f.cancel()
	f.nc.Close()
}

// run serves the front end until it hangs up, fails, or ctx ends, and returns why.
func (f *frontend) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		f.nc.SetReadDeadline(time.Unix(1, 0))
		f.nc.SetWriteDeadline(time.Now().Add(f.srv.cfg.DrainTimeout)) // it may not read its replies
		time.AfterFunc(f.srv.cfg.DrainTimeout, func() {
			f.gone.Store(true) // what is cancelled has not failed, but is the next one's
			f.cancel()
		})
	})()
	var err error
	for err == nil {
		err = f.handleNext()
	}
	if ctx.Err() != nil {
		f.drain()
		err = errStopped
	}
	f.fail(err)
	f.errMu.Lock()
	defer f.errMu.Unlock()
	return f.err
}

// tearDown waits until nothing of the front end is at the device any more, and frees what it
// has. If ctx ends first, the rest is freed when the device completes it.
func (f *frontend) tearDown(ctx context.Context) {
	f.stopAll()
	if u, ok := f.disk.Device.(block.User); ok {
		u.Abandon()
	}
	f.awaitAll(ctx)
	rest := func() {
		f.awaitAll(context.Background())
		f.running.Wait()
		for i := range f.queues {
			f.queues[i].kick.close()
			f.queues[i].call.close()
		}
	}
	if ctx.Err() == nil {
		rest()
	} else {
		go rest()
	}
	f.mem.release()
	f.log.release()
	f.errMu.Lock()
	defer f.errMu.Unlock()
	if f.backend >= 0 {
		unix.Close(f.backend)
		f.backend = -1
	}
}

// drain takes no more requests and waits until those that were taken have ended, or the
// front end does.
func (f *frontend) drain() {
	f.stopAll()
	f.awaitAll(f.ctx)
}

func (f *frontend) stopAll() {
	for i := range f.queues {
		if r := f.queues[i].runner; r != nil {
			r.stop()
		}
	}
}

func (f *frontend) awaitAll(ctx context.Context) {
	for i := range f.queues {
		if r := f.queues[i].runner; r != nil {
			r.await(ctx)
		}
	}
}

// message is one message of the front end's.
type message struct {
	header
	payload []byte
	fds     []int
}

// fd takes the message's only descriptor, -1 if there is none.
func (m *message) fd() int {
	if len(m.fds) == 0 {
		return -1
	}
	fd := m.fds[0]
	m.fds = m.fds[1:]
	return fd
}

// close closes the descriptors that nobody has taken.
func (m *message) close() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// receive receives a message. It fails at the connection's end, and for what is no message.
func (f *frontend) receive() (m message, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	var b [headerLen]byte
	oob := make([]byte, unix.CmsgSpace(maxTable*4))
	for n := 0; n < headerLen; {
		k, oobn, flags, _, err := f.nc.ReadMsgUnix(b[n:], oob)
		if err != nil {
			return m, fmt.Errorf("vhost: receive a message: %w", err)
		}
		fds, err := descriptors(oob[:oobn])
		m.fds = append(m.fds, fds...)
		switch {
		case err != nil:
			return m, err
		case flags&unix.MSG_CTRUNC != 0 || len(m.fds) > maxTable:
			return m, broken("a message has more than %d descriptors", maxTable)
		case k == 0 && n == 0:
			return m, io.EOF
		case k == 0:
			return m, broken("a message of %d bytes is cut", n)
		}
		n += k
	}
	if m.header, err = parseHeader(b[:]); err != nil {
		return m, err
	}
	if i := kinds[m.kind]; len(m.fds) > i.fds {
		return m, broken("%v has %d descriptors, %d at most are possible", m.kind, len(m.fds), i.fds)
	}
	m.payload = make([]byte, m.size)
	if _, err := io.ReadFull(f.nc, m.payload); err != nil {
		return m, broken("the payload of %v is cut: %v", m.kind, err)
	}
	return m, nil
}

// descriptors are those in control messages.
func descriptors(oob []byte) (fds []int, err error) {
	all, err := unix.ParseSocketControlMessage(oob)
	for i := range all {
		rights, rerr := unix.ParseUnixRights(&all[i])
		fds = append(fds, rights...)
		if err == nil && rerr != nil && rerr != unix.EINVAL {
			err = rerr
		}
	}
	return fds, err
}

// handleNext receives a message and carries it out. An error ends the front end.
func (f *frontend) handleNext() error {
	m, err := f.receive()
	if err != nil {
		return err
	}
	defer m.close()
	replied, err := f.handle(&m)
	if !replied && m.flags&flagNeedReply != 0 && f.proto&protoReplyAck != 0 {
		result := uint64(0)
		if err != nil {
			result = 1
		}
		err = errors.Join(err, f.replyU64(m.kind, result))
	}
	if err != nil {
		err = fmt.Errorf("%v: %w", m.kind, err)
	}
	return err
}

func (f *frontend) reply(k kind, payload []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := f.nc.WriteMsgUnix(append(appendHeader(nil, k, flagReply, len(payload)), payload...), oob, nil)
	return err
}

func (f *frontend) replyU64(k kind, v uint64) error { return f.reply(k, le.AppendUint64(nil, v)) }

// handle carries out a message. It reports whether it has replied.
func (f *frontend) handle(m *message) (replied bool, err error) {
	p := m.payload
	switch m.kind {
	case setOwner:
		return false, nil
	case getFeatures:
		return true, f.replyU64(m.kind, f.features)
	case getProtocolFeatures:
		return true, f.replyU64(m.kind, protoFeatures)
	case getQueueNum:
		return true, f.replyU64(m.kind, maxQueues)
	case getMaxMemSlots:
		return true, f.replyU64(m.kind, maxSlots)
	case setFeatures:
		return false, f.setFeatures(le.Uint64(p))
	case setProtocolFeatures:
		if f.proto = le.Uint64(p); f.proto&^protoFeatures != 0 {
			return false, broken("it chooses features %#x of the protocol that were not offered", f.proto&^protoFeatures)
		}
		return false, nil
	case resetOwner, resetDevice:
		return false, f.reset()
	case setBackendReqFD:
		f.setBackendFD(m.fd())
		return false, nil
	case setMemTable:
		return false, f.setMemTable(m)
	case addMemReg:
		return false, f.addRegion(m)
	case remMemReg:
		return false, f.removeRegion(parseRegionInfo(p[8:]))
	case getConfig, setConfig:
		return f.handleConfig(m)
	case getInflightFD:
		return true, f.newLog(m)
	case setInflightFD:
		return false, f.setLog(m)
	case setVringKick, setVringCall, setVringErr:
		return false, f.setEvent(m)
	case setVringAddr:
		at := parseVringAddr(p)
		q, err := f.queueAt(at.index)
		if err != nil {
			return false, err
		}
		if q.runner != nil && (at.desc != q.addr.desc || at.avail != q.addr.avail || at.used != q.addr.used) {
			return false, broken("queue %d is moved while it runs", q.index)
		}
		q.addr, q.hasAddr = at, true
		return false, nil
	}
	s := parseVringState(p)
	q, err := f.queueAt(s.index)
	if err != nil {
		return false, err
	}
	switch m.kind {
	case setVringNum:
		if q.runner != nil || s.num == 0 || s.num > maxRing {
			return false, broken("queue %d is to have %d descriptors, 1 to %d are possible while it is stopped", q.index, s.num, maxRing)
		}
		q.num = uint16(s.num)
	case setVringBase:
		if q.runner != nil {
			return false, broken("queue %d is to go on elsewhere while it runs", q.index)
		}
		q.base = s.num
	case setVringEnable:
		q.enabled = s.num != 0
		if !q.enabled {
			return false, f.stop(q)
		}
		return false, f.startIfReady(q)
	case getVringBase:
		if err := f.stop(q); err != nil {
			return false, err
		}
		q.kick.close()
		q.kick = nil
		return true, f.reply(m.kind, le.AppendUint32(le.AppendUint32(nil, s.index), q.base))
	}
	return false, nil
}

func (f *frontend) queueAt(i uint32) (*queue, error) {
	if i >= maxQueues {
		return nil, broken("it has a queue %d, there are %d", i, maxQueues)
	}
	return &f.queues[i], nil
}

func (f *frontend) setFeatures(v uint64) error {
	if v&^f.features != 0 {
		return broken("it chooses features %#x that were not offered", v&^f.features)
	}
	f.disk.setChosen(v, f.disk.writeBack)
	if v&featureProtocol != 0 {
		return nil
	}
	for i := range f.queues {
		f.queues[i].enabled = true
	}
	return nil
}

// reset stops all queues and forgets their settings.
func (f *frontend) reset() error {
	for i := range f.queues {
		q := &f.queues[i]
		if err := f.stop(q); err != nil {
			return err
		}
		q.kick.close()
		q.call.close()
		f.queues[i] = queue{index: i}
	}
	return nil
}

// stop stops a queue once its requests have ended. It fails if the front end ends first.
func (f *frontend) stop(q *queue) error {
	r := q.runner
	if r == nil {
		return nil
	}
	r.stop()
	if !r.await(f.ctx) {
		return f.ctx.Err()
	}
	q.base, q.runner = r.base(), nil
	return nil
}

// startIfReady starts a queue whose settings are complete. It fails for a ring that is not in
// the front end's memory, or is broken.
func (f *frontend) startIfReady(q *queue) error {
	if q.runner != nil || q.kick == nil || !q.enabled {
		return nil
	}
	if !q.hasAddr || q.num == 0 {
		return broken("queue %d is started before its size and place are set", q.index)
	}
	packed := f.disk.features&featurePacked != 0
	eventIndex := f.disk.features&featureEventIndex != 0
	var logged []byte
	if f.log != nil && q.index < int(f.logged.queues) {
		n := logLen(f.logged.num, packed)
		if q.num > f.logged.num || n*uint64(q.index+1) > uint64(len(f.log.mem)) {
			return broken("queue %d has %d descriptors, its log is for %d", q.index, q.num, f.logged.num)
		}
		logged = f.log.mem[n*uint64(q.index):][:n]
		if err := guarded(func() error { return claimLog(logged, f.srv.cfg.Attachment) }); err != nil {
			return err
		}
	}
	var ring ring
	var err error
	if packed {
		ring, err = newPackedRing(f.mem, q.num, q.addr, q.base, eventIndex, logged)
	} else {
		ring, err = newSplitRing(f.mem, q.num, q.addr, q.base, eventIndex, logged)
	}
	if err != nil {
		return err
	}
	f.start(q, ring, f.log)
	return nil
}

// setEvent sets what wakes a queue, or the guest.
func (f *frontend) setEvent(m *message) error {
	const none = 1 << 8
	v := le.Uint64(m.payload)
	q, err := f.queueAt(uint32(v & 0xff))
	if err != nil {
		return err
	}
	fd := m.fd()
	if (fd < 0) != (v&none != 0) {
		if fd >= 0 {
			unix.Close(fd)
		}
		return broken("it has a descriptor and says that it has none, or the other way round")
	}
	var e *event
	if fd >= 0 {
		if e, err = newEvent(fd); err != nil {
			return err
		}
	}
	switch m.kind {
	case setVringErr:
		e.close() // what is wrong ends the front end, which it sees
	case setVringCall:
		q.setCall(e)
	case setVringKick:
		if e == nil {
			return broken("queue %d is to be polled, which was not offered", q.index)
		}
		if err := f.stop(q); err != nil {
			e.close()
			return err
		}
		q.kick.close()
		q.kick = e
		return f.startIfReady(q)
	}
	return err
}

// handleConfig answers or changes the configuration.
func (f *frontend) handleConfig(m *message) (replied bool, err error) {
	c, err := parseConfig(m.payload)
	if err != nil {
		return false, err
	}
	if m.kind == getConfig {
		return true, f.reply(m.kind, append(append([]byte(nil), m.payload[:configHdrLen]...), f.disk.configSpace()[c.offset:c.offset+c.size]...))
	}
	const migration = 1
	switch {
	case c.flags == migration:
		return false, nil // a migrated configuration is this side's own
	case c.offset != wceOffset || c.size != 1 || c.data[0] > 1 || f.features&featureConfigWCE == 0:
		return false, broken("it changes bytes %d to %d of the configuration, only write back can be", c.offset, c.offset+c.size)
	}
	f.disk.setChosen(f.disk.features, c.data[0] == 1)
	return false, nil
}

// newLog makes memory for logs.
func (f *frontend) newLog(m *message) error {
	i := parseInflight(m.payload)
	if err := checkLog(i); err != nil {
		return err
	}
	i.offset, i.size = 0, uint64(i.queues)*logLen(i.num, true) // whichever ring is chosen
	fd, err := newLogFile(i.size)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	i.put(m.payload)
	return f.reply(m.kind, m.payload, fd)
}

func checkLog(i inflight) error {
	if i.queues == 0 || i.queues > maxQueues || i.num == 0 || i.num > maxRing {
		return broken("a log for %d queues of %d descriptors, %d of %d are possible", i.queues, i.num, maxQueues, maxRing)
	}
	return nil
}

// setLog takes over the front end's logs.
func (f *frontend) setLog(m *message) error {
	i := parseInflight(m.payload)
	if err := checkLog(i); err != nil {
		return err
	}
	for q := range f.queues {
		if f.queues[q].runner != nil {
			return broken("logs are changed while queue %d runs", q)
		}
	}
	if len(m.fds) != 1 || i.offset%logAlign != 0 || i.size > maxQueues*logLen(maxRing, true) {
		return broken("the logs have %d descriptors, begin at %d, and have %d bytes", len(m.fds), i.offset, i.size)
	}
	r, err := mapRegion(regionInfo{size: i.size, offset: i.offset}, m.fds[0])
	if err != nil {
		return err
	}
	r.refs.Store(1)
	f.log.release()
	f.log, f.logged = r, i
	return nil
}

// setMemTable sets all of the memory.
func (f *frontend) setMemTable(m *message) error {
	places, err := parseMemTable(m.payload, len(m.fds))
	if err != nil {
		return err
	}
	regions := make([]*region, 0, len(places))
	for i, p := range places {
		r, err := mapRegion(p, m.fds[i])
		if err != nil {
			unmap(regions)
			return err
		}
		regions = append(regions, r)
	}
	return f.setMemory(regions, regions)
}

// addRegion adds memory.
func (f *frontend) addRegion(m *message) error {
	if len(m.fds) != 1 {
		return broken("it has %d descriptors", len(m.fds))
	}
	r, err := mapRegion(parseRegionInfo(m.payload[8:]), m.fds[0])
	if err != nil {
		return err
	}
	added := []*region{r}
	return f.setMemory(append(added, f.mem.regions...), added)
}

// removeRegion removes memory.
func (f *frontend) removeRegion(p regionInfo) error {
	rest := slices.DeleteFunc(slices.Clone(f.mem.regions), func(r *region) bool {
		return r.guest == p.guest && r.user == p.user && r.size == p.size
	})
	if len(rest) == len(f.mem.regions) {
		return broken("there is no region of %d bytes at %#x", p.size, p.guest)
	}
	return f.setMemory(rest, nil)
}

// unmap undoes mapRegion.
func unmap(regions []*region) {
	for _, r := range regions {
		r.refs.Store(1)
		r.release()
	}
}

// setMemory makes regions the memory. It fails for what newMemory refuses, and where a ring
// that runs is not in it; then those that were just mapped are unmapped.
func (f *frontend) setMemory(regions, mapped []*region) error {
	mem, err := newMemory(regions)
	if err != nil {
		unmap(mapped)
		return err
	}
	for i := range f.queues {
		if q := &f.queues[i]; q.runner != nil {
			if err := q.runner.relocate(mem, q.addr); err != nil {
				mem.release()
				return err
			}
		}
	}
	f.mem.release()
	f.mem = mem
	return nil
}

// setBackendFD takes over the descriptor for requests of this side, -1 for none.
func (f *frontend) setBackendFD(fd int) {
	f.errMu.Lock()
	defer f.errMu.Unlock()
	if f.backend >= 0 {
		unix.Close(f.backend)
	}
	f.backend = fd
}

// sendConfigChange tells the front end that the configuration has changed, if it has a
// descriptor for that. Others read the size again when they like.
func (f *frontend) sendConfigChange() {
	f.errMu.Lock()
	defer f.errMu.Unlock()
	if f.backend >= 0 {
		_ = unix.Sendto(f.backend, appendHeader(nil, configChange, 0, 0), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
}

// hasHungUp reports whether a front end has closed its end.
func hasHungUp(nc socket) bool {
	raw, err := nc.SyscallConn()
	gone := false
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd)}}
			if n, err := unix.Poll(p, 0); err == nil && n > 0 { // interrupted, it says nothing
				gone = p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
			}
		})
	}
	return err != nil || gone
}
