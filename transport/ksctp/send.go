package ksctp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// sendableLocked checks a message.
func (a *Assoc) sendableLocked(m *assoc.Outgoing) (size int, err error) {
	switch {
	case a.ending:
		return 0, a.errClosedLocked()
	case a.shutting || a.peerShut:
		return 0, assoc.ErrShutdown
	}
	return m.Check(a.MaxMessage(), a.out)
}

// TrySend implements assoc.Association.
func (a *Assoc) TrySend(ms []assoc.Outgoing) (n int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refreshIfOldLocked()
	t := &a.tx
	for n < len(ms) && err == nil && len(t.kept) == 0 && !t.full {
		ok := 0 // how many can be sent
		for ; n+ok < len(ms); ok++ {
			if _, err = a.sendableLocked(&ms[n+ok]); err != nil {
				break
			}
		}
		k, serr := a.giveLocked(ms[n : n+ok])
		n += k
		if serr != nil {
			err = serr
		} else if k < ok {
			err = nil // there is no room, or a Barrier
			if len(t.kept) == 0 && !t.full {
				a.keepLocked(&ms[n])
				n++
			}
		}
	}
	return n, a.wrap("send", err)
}

// SendNow implements assoc.Association.
func (a *Assoc) SendNow(m assoc.Outgoing) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	size, err := a.sendableLocked(&m)
	if err != nil {
		return a.wrap("send", err)
	}
	t, n := &a.tx, 0
	if len(t.kept) == 0 && !t.full {
		if n, err = a.giveLocked([]assoc.Outgoing{m}); err != nil {
			return a.wrap("send", err)
		}
	}
	if n == 0 {
		if t.keptBytes+size+assoc.MessageOverhead > assoc.Reserve {
			return a.wrap("send", assoc.ErrNoRoom)
		}
		a.keepLocked(&m)
	}
	return nil
}

// keepLocked copies a message to those that wait here.
func (a *Assoc) keepLocked(m *assoc.Outgoing) {
	t := &a.tx
	size := m.Size()
	whole := make([]byte, 0, size)
	for _, b := range m.Bufs {
		whole = append(whole, b...)
	}
	t.kept = append(t.kept, assoc.Outgoing{Stream: m.Stream, PPID: m.PPID, Bufs: [][]byte{whole}, Barrier: m.Barrier})
	t.keptBytes += size + assoc.MessageOverhead
}

// flushLocked sends the messages that wait here, and then a pending shutdown.
func (a *Assoc) flushLocked() {
	t := &a.tx
	for len(t.kept) > 0 && !t.full && !t.drying && !a.ending {
		n, err := a.giveLocked(t.kept)
		for i := range n {
			t.keptBytes -= t.kept[i].Size() + assoc.MessageOverhead
		}
		t.kept = append(t.kept[:0], t.kept[n:]...)
		if err != nil {
			t.kept, t.keptBytes = nil, 0
			if errors.Is(err, assoc.ErrTooLong) { // accepted messages cannot be delivered
				a.failLocked(err)
			} // otherwise the association is ending, and the reader learns why
		}
	}
	if len(t.kept) == 0 && a.shutting && !t.shut && !a.ending {
		t.shut = true
		_ = a.conn.Shutdown(unix.SHUT_WR)
	}
	if len(t.kept) == 0 && !t.full {
		a.room.Broadcast()
	}
}

// giveLocked hands messages to the kernel until it has no room or a Barrier has to wait.
func (a *Assoc) giveLocked(ms []assoc.Outgoing) (n int, err error) {
	t := &a.tx
	for n < len(ms) && err == nil && !t.full {
		if ms[n].Barrier && !a.settledLocked() {
			a.awaitDryLocked()
			break
		}
		k := 0
		k, err = a.giveBatchLocked(ms[n:])
		n += k
	}
	if n > 0 {
		a.used.Store(time.Now().UnixNano())
	}
	return n, err
}

// giveBatchLocked makes one system call.
func (a *Assoc) giveBatchLocked(ms []assoc.Outgoing) (n int, err error) {
	t := &a.tx
	t.log.reserve(batchLen, t.used)
	b := t.getBatch()
	for i := range ms {
		if i > 0 && ms[i].Barrier || !b.add(&ms[i]) {
			break
		}
	}
	t.batch = b
	if cerr := a.rc.Control(t.send); cerr != nil {
		t.sent, t.sendErr = 0, net.ErrClosed
	}
	n, t.batch = t.sent, nil
	t.putBatch(b)
	switch t.sendErr {
	case nil:
	case unix.EAGAIN:
		a.fillLocked(0)
	case unix.ENOBUFS, unix.ENOMEM:
		a.fillLocked(memoryPause)
	case unix.EMSGSIZE: // the path's MTU has shrunk
		if err = a.refresh(); err == nil {
			err = assoc.ErrTooLong
		}
	default:
		if errno, ok := t.sendErr.(unix.Errno); ok && errno != unix.EPIPE && a.errno == 0 {
			a.errno = errno
		}
		a.rx.drain()
		err = fmt.Errorf("%w: %w", assoc.ErrShutdown, t.sendErr)
	}
	for i := range n {
		size := ms[i].Size()
		t.log.add(ms[i].Stream, size)
		t.messages++
		t.bytes += uint64(size)
	}
	return n, err
}

// settledLocked reports whether everything sent is acknowledged.
func (a *Assoc) settledLocked() bool {
	used, err := a.queuedLocked()
	return err == nil && used == 0
}

// awaitDryLocked asks the kernel to report when everything is acknowledged, which it does
// at once if that is already so.
func (a *Assoc) awaitDryLocked() {
	if !a.tx.drying {
		a.tx.drying = true
		_ = control(a.conn, func(fd int) error { return setEvent(fd, noteSenderDry, true) })
	}
}

// dried handles that report.
func (a *Assoc) dried() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tx.drying {
		a.tx.drying = false
		_ = control(a.conn, func(fd int) error { return setEvent(fd, noteSenderDry, false) })
		a.flushLocked()
	}
}

// fillLocked records that the kernel has no room, and starts a goroutine that waits until
// half of the buffer is free.
func (a *Assoc) fillLocked(pause time.Duration) {
	if a.tx.full || a.ending {
		return
	}
	a.tx.full = true
	if pause > 0 {
		a.wg.Go(func() {
			time.Sleep(pause)
			a.awaitRoom()
		})
		return
	}
	a.wg.Go(a.tx.await)
}

// awaitRoom waits until half of the send buffer is free.
func (a *Assoc) awaitRoom() {
	_ = a.rc.Write(a.tx.hasRoom) // unlocked: it never changes
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tx.full = false
	a.flushLocked()
}

// Wait implements assoc.Association.
func (a *Assoc) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		a.room.Broadcast()
		a.mu.Unlock()
	})
	defer stop()
	a.mu.Lock()
	for ctx.Err() == nil && !a.ending && (a.tx.full || len(a.tx.kept) > 0) {
		a.room.Wait()
	}
	a.mu.Unlock()
	return a.wrap("send", ctx.Err())
}

// queuedLocked returns how much of the send buffer is in use until a cumulative
// acknowledgement: memory, not bytes of messages.
func (a *Assoc) queuedLocked() (used int, err error) {
	t := &a.tx
	if err := a.rc.Control(t.measure); err != nil {
		return 0, err
	}
	return t.memory, t.memoryErr
}

// Outstanding implements assoc.Association. The kernel only reports how much memory the
// messages take, so it may be too high, but never too low.
func (a *Assoc) Outstanding(stream uint16) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := &a.tx
	t.log.trim(t.used)
	n := t.log.of(stream)
	for i := range t.kept {
		if t.kept[i].Stream == stream {
			n++
		}
	}
	return n
}

// Outq implements assoc.Association, with an estimate like Outstanding's.
func (a *Assoc) Outq() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return 0, a.wrap("count what is queued", net.ErrClosed)
	}
	t := &a.tx
	t.log.trim(t.used)
	return t.log.bytes() + t.keptBytes - assoc.MessageOverhead*len(t.kept), nil
}
