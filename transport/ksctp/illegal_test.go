package ksctp_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	lksctp "github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// plainPeer is a socket whose user does what RFC 5043 forbids. It gives DDP's
// indication.
func plainPeer(t *testing.T, at netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fd, err
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_SCTP, lksctp.SCTP_ADAPTATION_LAYER, 1); err != nil {
		return fd, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	if err == unix.EISCONN { // a signal of Go's scheduler had the kernel begin anew when it was connected
		err = nil
	}
	return fd, err
}

// sendInfo sends a message with struct sctp_sndinfo.
func sendInfo(fd int, stream, flags uint16, ppid uint32, p []byte) error {
	oob := make([]byte, unix.CmsgSpace(16))
	ne := binary.NativeEndian
	ne.PutUint64(oob, uint64(unix.CmsgLen(16)))
	ne.PutUint32(oob[8:], unix.IPPROTO_SCTP)
	ne.PutUint32(oob[12:], 2)
	ne.PutUint16(oob[16:], stream)
	ne.PutUint16(oob[18:], flags)
	binary.BigEndian.PutUint32(oob[20:], ppid)
	_, err := unix.SendmsgN(fd, p, oob, nil, 0)
	return err
}

// What a peer may not do is handed up as what it is, so that the adaptation layer
// ends what RFC 5043 says. The association and its other streams go on.
func TestIllegalMessagesAreSeenAsSuch(t *testing.T) {
	kernel(t)
	l := listen(t, ksctp.Config{Params: assoc.Params{Adaptation: 1, Streams: 10}, Local: loopback})
	fd, err := plainPeer(t, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); <-a.Done() })
	r := assoctest.NewInbox()
	a.Start(r)
	const unordered = 1
	whole := assoc.Begin | assoc.End
	for came, m := range []struct {
		stream, flags uint16
		ppid          uint32
		size          int
		want          assoc.Flags
	}{
		{0, unordered, 16, 100, whole | assoc.Unordered},
		{1, 0, 16, 100, whole},
		{1, 0, 17, 100, whole},
		{2, unordered, 4711, 100, whole | assoc.Unordered},
		{3, unordered, 16, 1, whole | assoc.Unordered},
		{9, unordered, 16, a.MaxMessage(), whole | assoc.Unordered},
	} {
		if err := sendInfo(fd, m.stream, m.flags, m.ppid, make([]byte, m.size)); err != nil {
			t.Fatal(err)
		}
		r.WaitFor(t, came+1)
		var got assoc.Message
		r.Set(func() { got = r.Got[came] })
		if got.Flags != m.want || got.Stream != m.stream || got.PPID != m.ppid || len(got.Payload) != m.size {
			t.Errorf("%+v came as stream %d, flags %v, PPID %d, %d bytes", m, got.Stream, got.Flags, got.PPID, len(got.Payload))
		}
	}
	if ordered := r.Got[2]; ordered.SSN != r.Got[1].SSN+1 || ordered.TSN != r.Got[1].TSN+1 {
		t.Errorf("the numbers of two ordered messages: %d, %d and TSNs %d, %d", r.Got[1].SSN, ordered.SSN, r.Got[1].TSN, ordered.TSN)
	}
	send(t, a, one(5, []byte("and the other way")))
	p := make([]byte, 100)
	if n, err := unix.Read(fd, p); err != nil || string(p[:n]) != "and the other way" {
		t.Errorf("the peer has read %q, %v", p[:max(n, 0)], err)
	}
}

// A message that the peer has fragmented shows when its fragments do not come
// together, which a message longer than the receive window makes sure of.
func TestFragmentsAreSeenAsSuch(t *testing.T) {
	ha, hb := hosts(t, 1)
	l := listenOn(t, hb, ksctp.Config{Params: assoc.Params{Adaptation: 1}, Local: addrs(hb, 1), Port: port, RecvBuffer: 128 << 10})
	var fd int
	if err := ha.Do(func() (err error) { fd, err = plainPeer(t, l.Addr()); return err }); err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); <-a.Done() })
	r, bytes := assoctest.NewInbox(), 0
	r.On = func(m *assoc.Message) { bytes += len(m.Payload) }
	a.Start(r)
	sent := make(chan error, 1)
	go func() {
		err := sendInfo(fd, 1, 1, 16, make([]byte, 180<<10))
		if err == nil {
			err = sendInfo(fd, 2, 1, 16, []byte("whole"))
		}
		sent <- err
	}()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	r.Wait(t, "all of it", func() bool { return bytes == 180<<10+5 })
	r.Lock()
	defer r.Unlock()
	first, last := r.Got[0], r.Got[len(r.Got)-2]
	if len(r.Got) < 3 || first.Flags&(assoc.Begin|assoc.End) != assoc.Begin || last.Flags&(assoc.Begin|assoc.End) != assoc.End {
		t.Errorf("%d pieces, the first with flags %v, the last with %v", len(r.Got), first.Flags, last.Flags)
	}
	for _, m := range r.Got[1 : len(r.Got)-2] {
		if m.Flags&(assoc.Begin|assoc.End) != 0 {
			t.Errorf("a piece in between has flags %v", m.Flags)
		}
	}
	if m := r.Got[len(r.Got)-1]; !m.Flags.Whole() || m.Stream != 2 {
		t.Errorf("the message behind it: stream %d, flags %v", m.Stream, m.Flags)
	}
}
