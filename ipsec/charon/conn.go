package charon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/strongswan/govici/vici"
	"golang.org/x/sys/unix"
)

// Conn is one connection to charon. At most one goroutine uses it, but any
// may close it. Every call has a deadline; a call that runs out of it leaves the
// connection closed, since its answer might still come.
type Conn struct {
	Socket string
	s      *vici.Session
	fc     *framedConn
	Events chan vici.Event
	PID    int // of charon, 0 when it cannot be seen
}

// Dial connects to charon. Of the lines of its log those arrive that have one of the
// words, or all without words. It fails with an *Error of ErrNotRunning, ErrRefused,
// ErrPermission, ErrHangs or ErrGone.
func Dial(ctx context.Context, socket string, words ...string) (*Conn, error) {
	fail := func(kind, err error, advice string) error {
		return &Error{Op: "connect", Socket: socket, Kind: kind, Err: err, Advice: advice}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fail(ErrNotRunning, nil, "there is no such socket; install it with apt install charon-systemd strongswan-swanctl, start it with systemctl start strongswan")
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fail(ErrRefused, nil, "the socket is there but nobody listens, as after a crash; systemctl restart strongswan")
	case errors.Is(err, fs.ErrPermission):
		return nil, fail(ErrPermission, nil, "run as root, or as a member of the socket's group")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return nil, fail(ErrHangs, err, "it does not accept connections; systemctl restart strongswan")
	default:
		return nil, fail(ErrGone, err, "")
	}
	return NewConn(conn, socket, words...)
}

// NewConn speaks VICI on a connection. It fails with an *Error of ErrGone, and closes
// conn then.
func NewConn(conn net.Conn, socket string, words ...string) (*Conn, error) {
	c := &Conn{Socket: socket, fc: newFramedConn(conn), Events: make(chan vici.Event, eventBuffer), PID: peerPID(conn)}
	var err error
	c.fc.words = words
	c.fc.room = func() bool { return len(c.Events) < cap(c.Events)/2 }
	c.s, err = vici.NewSession(vici.WithDialContext(func(context.Context, string, string) (net.Conn, error) { return c.fc, nil }))
	if err != nil {
		conn.Close()
		return nil, &Error{Op: "connect", Socket: socket, Kind: ErrGone, Err: err}
	}
	c.s.NotifyEvents(c.Events)
	return c, nil
}

// Close ends the connection, and calls under way.
func (c *Conn) Close() { c.fc.Close() }

// Call makes a request and returns the answer. Events that come before it go to each,
// if that is not nil. about is what the request is about, for errors. It fails with a
// *CommandError where charon refuses, and otherwise with an *Error.
func (c *Conn) Call(ctx context.Context, cmd, about string, in *vici.Message, each func(vici.Event)) (*vici.Message, error) {
	type answer struct {
		m   *vici.Message
		err error
	}
	done := make(chan answer, 1)
	go func() {
		m, err := c.s.Call(ctx, cmd, in)
		done <- answer{m, err}
	}()
	events := c.Events
	if each == nil {
		events = nil
	}
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			each(ev)
		case a := <-done:
			for each != nil && len(c.Events) > 0 {
				if ev, ok := <-c.Events; ok {
					each(ev)
				} else {
					break
				}
			}
			return a.m, c.callError(ctx, cmd, about, a.m, a.err)
		}
	}
}

func (c *Conn) callError(ctx context.Context, cmd, about string, m *vici.Message, err error) error {
	switch {
	case err == nil:
		return nil
	case m != nil:
		reason := err.Error()
		if s := Str(m, "errmsg"); s != "" {
			reason = s
		}
		return &CommandError{Command: cmd, Name: about, Reason: reason}
	}
	lost := c.fc.isLost()
	c.Close()
	e := &Error{Op: cmd, Socket: c.Socket, Kind: ErrGone, Err: err}
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil:
		e.Kind, e.Err = ErrHangs, nil
		e.Advice = "no answer in time; if that lasts: systemctl restart strongswan"
	case c.fc.fault() != nil:
		e.Kind, e.Err = ErrProtocol, c.fc.fault()
	case !lost:
		e.Kind = ErrProtocol // it was not decoded, though the socket is well
	}
	return e
}

// errClosed means that the socket for events was closed by charon.
var errClosed = errors.New("charon closed the connection")

// Ended is why the connection for events is no more: an *Error of ErrGone or
// ErrProtocol.
func (c *Conn) Ended() error {
	e := &Error{Op: "follow events", Socket: c.Socket, Kind: ErrGone, Err: errClosed}
	if err := c.fc.fault(); err != nil {
		e.Kind, e.Err = ErrProtocol, err
	} else if !c.fc.isLost() {
		e.Kind, e.Err = ErrProtocol, errors.New("an event that could not be decoded")
	}
	return e
}

// Subscribe registers for events. Those that arrive meanwhile are held back until all
// registrations are done: govici waits for a confirmation under the lock that the
// delivery of an event takes, so that one event at the wrong moment would block the
// connection for good. It fails as Call does.
func (c *Conn) Subscribe(ctx context.Context, names ...string) error {
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	c.fc.hold()
	for _, name := range names {
		if err := c.s.Subscribe(name); err != nil {
			return c.callError(ctx, "subscribe", name, nil, err)
		}
	}
	if c.fc.unhold() {
		// The reader sits in the socket; an answer makes it look at what it holds.
		_, err := c.Call(ctx, "version", "charon", nil, nil)
		return err
	}
	return nil
}

func peerPID(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

const (
	// eventBuffer holds events between charon and us. It never fills: framedConn
	// stops reading when it is half full.
	eventBuffer = 1024
	// maxFrame is above what charon sends (it limits itself to 512 KiB).
	maxFrame = 1 << 20
	// maxHeld bounds the events that wait for the end of a registration.
	maxHeld = 4096
)

// framedConn sits between govici and the socket and hands over whole packets.
// It keeps govici from losing events, which it drops when a channel is full:
// it reads no further while there is no room. And it refuses lengths that no
// charon sends before memory is made for them.
type framedConn struct {
	net.Conn
	room  func() bool
	words []string // of the lines of the log that pass

	buf []byte // what is left of the packet that is being handed over

	mu      sync.Mutex // guards the fields below it
	holding bool
	held    [][]byte // events that wait
	closed  bool
	lost    bool  // the socket was closed by either side
	err     error // what was wrong with the stream
}

func newFramedConn(c net.Conn) *framedConn { return &framedConn{Conn: c} }

// hold keeps events back from now on.
func (f *framedConn) hold() {
	f.mu.Lock()
	f.holding = true
	f.mu.Unlock()
}

// unhold lets them pass again, and reports whether some are waiting. They are
// handed over after the next packet that is read.
func (f *framedConn) unhold() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holding = false
	return len(f.held) > 0
}

func (f *framedConn) fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *framedConn) isLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost || f.closed
}

// bad notes what is wrong with the stream.
func (f *framedConn) bad(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	return err
}

// Write writes to the connection.
func (f *framedConn) Write(b []byte) (int, error) {
	n, err := f.Conn.Write(b)
	if err != nil {
		f.mu.Lock()
		f.lost = true
		f.mu.Unlock()
	}
	return n, err
}

// Close ends the connection.
func (f *framedConn) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	return f.Conn.Close()
}

// Read is called by govici's one reader.
func (f *framedConn) Read(p []byte) (int, error) {
	if len(f.buf) == 0 {
		frame, err := f.next()
		if err != nil {
			return 0, err
		}
		f.buf = frame
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}

func (f *framedConn) next() ([]byte, error) {
	for {
		if frame := f.released(); frame != nil {
			f.waitForRoom()
			return frame, nil
		}
		frame, err := f.readFrame()
		if err != nil {
			return nil, err
		}
		if err := checkFrame(frame); err != nil {
			return nil, f.bad(err)
		}
		if frame[4] != packetEvent {
			return frame, nil
		}
		if !worthHearing(frame, f.words) {
			continue
		}
		kept, err := f.keep(frame)
		if err != nil {
			return nil, f.bad(err)
		}
		if !kept {
			f.waitForRoom()
			return frame, nil
		}
	}
}

// released takes the oldest event that was held back and may pass now.
func (f *framedConn) released() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holding || len(f.held) == 0 {
		return nil
	}
	frame := f.held[0]
	f.held = f.held[1:]
	return frame
}

// keep holds an event back if events have to wait.
func (f *framedConn) keep(frame []byte) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.holding && len(f.held) == 0 {
		return false, nil
	}
	if len(f.held) >= maxHeld {
		return false, fmt.Errorf("%d events before the answer to a registration", len(f.held))
	}
	f.held = append(f.held, frame)
	return true, nil
}

func (f *framedConn) waitForRoom() {
	for !f.room() {
		f.mu.Lock()
		closed := f.closed
		f.mu.Unlock()
		if closed {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *framedConn) readFrame() ([]byte, error) {
	var head [4]byte
	if err := f.readFull(head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return nil, f.bad(fmt.Errorf("a packet of %d bytes, 1 to %d are possible", n, maxFrame))
	}
	frame := make([]byte, 4+n)
	copy(frame, head[:])
	return frame, f.readFull(frame[4:])
}

func (f *framedConn) readFull(p []byte) error {
	for len(p) > 0 {
		n, err := f.Conn.Read(p)
		p = p[n:]
		if err != nil && len(p) > 0 {
			f.mu.Lock()
			f.lost = true
			f.mu.Unlock()
			return err
		}
	}
	return nil
}
