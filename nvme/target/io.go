package target

import (
	"bytes"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
)

// io runs a command of an I/O queue.
func (k *command) io(x *controller) {
	ns := x.namespaces()[k.cmd.NSID()]
	if ns == nil {
		k.fail(nvme.InvalidNamespace | nvme.DNR)
		return
	}
	switch k.cmd.Opcode() {
	case nvme.Read:
		if n, ok := k.blocks(ns, maxTransfer); ok {
			k.give(uint32(n), func(k *command) { k.run(x, ns, (*command).read) })
		}
	case nvme.Write:
		if n, ok := k.blocks(ns, maxTransfer); ok {
			k.take(uint32(n), func(k *command) { k.run(x, ns, (*command).write) })
		}
	case nvme.Compare:
		if n, ok := k.blocks(ns, maxTransfer); ok {
			k.take(uint32(n), func(k *command) { k.run(x, ns, (*command).compare) })
		}
	case nvme.WriteZeroes:
		if _, ok := k.blocks(ns, maxTransfer<<13); ok {
			k.run(x, ns, (*command).writeZeroes)
		}
	case nvme.Flush:
		k.run(x, ns, (*command).flushStorage)
	case nvme.DatasetManagement:
		n := (k.cmd.DWord(10)&0xff + 1) * nvme.RangeLen
		k.sgl.Length = min(k.sgl.Length, n) // Linux describes the memory of the longest list, whatever is in it
		k.take(n, func(k *command) { k.run(x, ns, (*command).manageDataset) })
	case nvme.ReservationRegister, nvme.ReservationAcquire:
		k.take(16, func(k *command) { k.reserve(x, ns) })
	case nvme.ReservationRelease:
		k.take(8, func(k *command) { k.reserve(x, ns) })
	case nvme.ReservationReport:
		k.report(x, ns)
	default:
		k.fail(nvme.InvalidOpcode | nvme.DNR)
	}
}

// blocks is the length in bytes of a command on blocks, at most most, whose place is then in off. It fails the command
// if it is longer, or not within the namespace.
func (k *command) blocks(ns *Namespace, most uint64) (n uint64, ok bool) {
	n = uint64(k.cmd.Blocks()) << ns.shift
	switch {
	case n > most:
		k.fail(nvme.InvalidField | nvme.DNR)
		return 0, false
	case !ns.holds(k.cmd.SLBA(), uint64(k.cmd.Blocks())):
		k.fail(nvme.LBAOutOfRange | nvme.DNR)
		return 0, false
	}
	k.off = k.cmd.SLBA() << ns.shift
	return n, true
}

// run begins a command at the storage, unless a reservation stands against it or the namespace goes away.
func (k *command) run(x *controller, ns *Namespace, f func(*command)) {
	op := k.cmd.Opcode()
	if st := ns.begin(x, k, op); st != nvme.Success {
		k.fail(st)
		return
	}
	f(k)
}

func (k *command) durable() bool { return k.cmd.DWord(12)&nvme.RWForceUnitAccess != 0 }

// count adds a command that ends well to the statistics of the controller and of the namespace.
func (k *command) count(op block.Op, n int) {
	k.ctrl.io.count(op, n)
	k.ns.io.count(op, n)
	k.ns.latency.Observe(op, time.Since(k.began))
}

// failed ends a command at whose storage something failed.
func (k *command) failed(errno syscall.Errno) bool {
	if errno == 0 {
		return false
	}
	k.ctrl.io.errors.Add(1)
	k.ns.io.errors.Add(1)
	st := nvme.WriteFault
	switch op := k.cmd.Opcode(); {
	case errno == syscall.ENOSPC, errno == syscall.EDQUOT:
		st = nvme.CapacityExceeded | nvme.DNR
	case errno == syscall.EROFS:
		st = nvme.WriteProtected | nvme.DNR
	case errno == syscall.ESHUTDOWN:
		st = nvme.NamespaceNotReady
	case op == nvme.Read, op == nvme.Compare:
		st = nvme.UnrecoveredRead
	}
	k.fail(st)
	return true
}

func finish(k *command, errno syscall.Errno) {
	if !k.failed(errno) {
		k.end(nvme.Success)
	}
}

func (k *command) read() {
	if k.durable() && k.ns.geo.CanFlush { // what a cache has is to be on the medium first
		k.do(block.OpFlush, nil, 0, 0, 0, func(k *command, errno syscall.Errno) {
			if !k.failed(errno) {
				k.readData()
			}
		})
		return
	}
	k.readData()
}

func (k *command) readData() {
	k.do(block.OpRead, k.buf, k.off, int64(len(k.buf)), 0, readDone)
}

func readDone(k *command, errno syscall.Errno) {
	if !k.failed(errno) {
		k.count(block.OpRead, len(k.buf))
		k.end(nvme.Success)
	}
}

func (k *command) write() {
	fl := block.Flags(0)
	step := writeDone
	if k.durable() {
		if k.ns.geo.CanFUA {
			fl = block.FUA
		} else if k.ns.geo.CanFlush {
			step = flushAfter
		}
	}
	k.do(block.OpWrite, k.buf, k.off, int64(len(k.buf)), fl, step)
}

func writeDone(k *command, errno syscall.Errno) {
	if !k.failed(errno) {
		k.count(block.OpWrite, len(k.buf))
		k.end(nvme.Success)
	}
}

func flushAfter(k *command, errno syscall.Errno) {
	if !k.failed(errno) {
		k.do(block.OpFlush, nil, 0, 0, 0, writeDone)
	}
}

func (k *command) flushStorage() {
	if !k.ns.geo.CanFlush {
		k.end(nvme.Success)
		return
	}
	k.do(block.OpFlush, nil, 0, 0, 0, flushDone)
}

func flushDone(k *command, errno syscall.Errno) {
	if !k.failed(errno) {
		k.count(block.OpFlush, 0)
		k.end(nvme.Success)
	}
}

// stopped ends a command between two of its pieces if nobody is to wait for the rest: its connection is over, the namespace was taken
// away, or a reservation keeps its host out by now. writes: the rest changes the storage.
func (k *command) stopped(writes bool) bool {
	k.c.mu.Lock()
	dead := k.c.dead
	k.c.mu.Unlock()
	k.ns.mu.Lock()
	gone, excluded := k.ns.gone, k.ns.pr.excludes(k.ctrl.host.HostID, writes)
	k.ns.mu.Unlock()
	switch {
	case dead || gone:
		k.fail(nvme.AbortedByRequest)
	case excluded:
		k.fail(nvme.ReservationConflict | nvme.DNR)
	default:
		return false
	}
	return true
}

// compare compares the host's data with the storage's, of which it has a piece at a time.
func (k *command) compare() {
	k.scratch, k.at = make([]byte, min(len(k.buf), maxPiece)), 0
	k.compareNext()
}

func (k *command) compareNext() {
	n := min(len(k.buf)-int(k.at), len(k.scratch))
	if n == 0 {
		k.end(nvme.Success)
		return
	}
	if k.stopped(false) {
		return
	}
	k.do(block.OpRead, k.scratch[:n], k.off+k.at, int64(n), 0, func(k *command, errno syscall.Errno) {
		if k.failed(errno) {
			return
		}
		if !bytes.Equal(k.scratch[:n], k.buf[k.at:][:n]) {
			k.fail(nvme.CompareFailure | nvme.DNR)
			return
		}
		k.at += uint64(n)
		k.compareNext()
	})
}

var zeroes [maxPiece]byte

// writeZeroes runs Write Zeroes, by writing them where the storage has nothing better.
func (k *command) writeZeroes() {
	n := uint64(k.cmd.Blocks()) << k.ns.shift
	if !k.ns.geo.CanWriteZeroes {
		k.at = 0
		k.zeroNext(n)
		return
	}
	fl := block.NoUnmap
	if k.cmd.DWord(12)&nvme.WZDeallocate != 0 && k.ns.thin() {
		fl = 0
	}
	if k.durable() && k.ns.geo.CanFUA {
		fl |= block.FUA
	}
	k.do(block.OpWriteZeroes, nil, k.off, int64(n), fl, k.flushIfDurable)
}

// flushIfDurable ends the command, after a flush if there was no other way to have it durable.
func (k *command) flushIfDurable(_ *command, errno syscall.Errno) {
	switch {
	case k.failed(errno):
	case k.durable() && !k.ns.geo.CanFUA && k.ns.geo.CanFlush:
		k.do(block.OpFlush, nil, 0, 0, 0, finish)
	default:
		k.end(nvme.Success)
	}
}

func (k *command) zeroNext(n uint64) {
	if k.at == n {
		k.flushIfDurable(k, 0)
		return
	}
	if k.stopped(true) {
		return
	}
	piece := min(n-k.at, maxPiece)
	k.do(block.OpWrite, zeroes[:piece], k.off+k.at, int64(piece), 0, func(k *command, errno syscall.Errno) {
		if !k.failed(errno) {
			k.at += piece
			k.zeroNext(n)
		}
	})
}

// manageDataset gives up ranges, if that is asked for: they read as zeroes afterwards. The rest is hints.
func (k *command) manageDataset() {
	all, err := nvme.ParseRanges(k.buf)
	if err != nil {
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	for _, r := range all {
		if !k.ns.holds(r.SLBA, uint64(r.Blocks)) {
			k.fail(nvme.LBAOutOfRange | nvme.DNR)
			return
		}
	}
	if k.cmd.DWord(11)&nvme.DSMDeallocate == 0 || !k.ns.thin() {
		k.end(nvme.Success)
		return
	}
	k.ranges, k.at = all, 0
	trimNext(k, 0)
}

// trimNext gives up the next piece of a range.
func trimNext(k *command, errno syscall.Errno) {
	if k.failed(errno) {
		return
	}
	for len(k.ranges) > 0 && k.at == uint64(k.ranges[0].Blocks)<<k.ns.shift {
		k.ranges, k.at = k.ranges[1:], 0
	}
	if len(k.ranges) == 0 {
		k.end(nvme.Success)
		return
	}
	if k.stopped(true) {
		return
	}
	r := k.ranges[0]
	n := min(uint64(r.Blocks)<<k.ns.shift-k.at, maxRange)
	off := r.SLBA<<k.ns.shift + k.at
	k.at += n
	k.do(block.OpWriteZeroes, nil, off, int64(n), 0, trimNext)
}
