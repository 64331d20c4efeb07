package netfuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// eve is a server whose disk the daemon attaches. It is the daemon itself, behind a
// relay that alters its answers.
var eve = netip.MustParseAddr("127.0.0.68")

// attachTime bounds an attempt to attach a disk.
const attachTime = 2 * time.Second

// alteringRelay is that relay.
type alteringRelay struct {
	ln net.Listener
	wg sync.WaitGroup

	mu sync.Mutex
	s  *script

	connsMu sync.Mutex
	conns   []net.Conn
}

func newAlteringRelay(f *testing.F, v *target) *alteringRelay {
	f.Helper()
	ln, err := net.Listen("tcp", netip.AddrPortFrom(eve, 0).String())
	if err != nil {
		f.Fatal(err)
	}
	w := &alteringRelay{ln: ln, s: &script{}}
	w.wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(mallory, 0)), Timeout: patience}
			far, err := d.Dial("tcp", netip.AddrPortFrom(home, v.port).String())
			if err != nil {
				near.Close()
				continue
			}
			w.connsMu.Lock()
			w.conns = append(w.conns, near, far)
			w.connsMu.Unlock()
			w.wg.Go(func() {
				io.Copy(far, near)
				far.Close()
			})
			w.wg.Go(func() {
				w.answers(near, far)
				near.Close()
			})
		}
	})
	f.Cleanup(func() {
		ln.Close()
		w.cut()
		w.wg.Wait()
	})
	return w
}

// answers relays the server's answers, altered by the script.
func (w *alteringRelay) answers(near, far net.Conn) {
	fr, err := raw.ReadReply(far)
	if err != nil && !errors.Is(err, raw.ErrRefused) {
		return
	}
	b, err := fr.Append(nil)
	if err != nil {
		return
	}
	if _, err := near.Write(w.alter(b)); err != nil {
		return
	}
	var in []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := far.Read(buf)
		in = append(in, buf[:n]...)
		for {
			seg, rest, ok := raw.CutFPDU(in)
			if !ok {
				break
			}
			seg = w.alter(bytes.Clone(seg))
			if _, err := near.Write(raw.AppendFPDU(nil, seg, len(seg))); err != nil {
				return
			}
			in = rest
		}
		if err != nil {
			return
		}
	}
}

func (w *alteringRelay) alter(b []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.s.alter(b)
}

// cut ends all connections.
func (w *alteringRelay) cut() {
	w.connsMu.Lock()
	defer w.connsMu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// use attaches the disk, reads from it and detaches it. Each may fail.
func (w *alteringRelay) use(v *target, s *script) {
	w.mu.Lock()
	w.s = s
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), attachTime)
	defer cancel()
	if _, err := v.api.Attach(ctx, api.AttachRequest{Peer: "eve", Export: "open", TimeoutSeconds: attachTime.Seconds() / 2}, nil); err == nil {
		readNBD(filepath.Join(v.dir, "run", "nbd", "eve-open.sock"))
	}
	w.mu.Lock()
	w.s = &script{}
	w.mu.Unlock()
	ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = v.api.Detach(ctx, "eve", "open", true) // it may never have been attached
	w.cut()
}

func readNBD(socket string) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(attachTime / 2))
	cl, err := nbdtest.Connect(c, "open", false)
	if err != nil {
		return
	}
	const read, write = 0, 1
	for i := range 4 {
		if _, err := cl.Do(0, uint16(i%2), uint64(i)*4096, 4096, map[int][]byte{read: nil, write: make([]byte, 4096)}[i%2]); err != nil {
			return
		}
	}
}

// FuzzAttached lets a daemon attach the disk of a server whose answers are altered.
func FuzzAttached(f *testing.F) {
	v := newTarget(f)
	w := newAlteringRelay(f, v)
	port := w.ln.Addr().(*net.TCPAddr).Port
	v.write(f, "peers.d/eve.yaml", fmt.Sprintf("name: eve\naddress: %s\nlocal_address: %s\nport: %d\nprotection: loopback\nconnections: 1\n", eve, home, port))
	if _, err := v.api.Reload(context.Background()); err != nil {
		f.Fatal(err)
	}
	// Of each answer the first byte says whether it is altered.
	f.Add([]byte{})
	for n := range 12 {
		as := make([]byte, n)
		f.Add(append(bytes.Clone(as), 0xc2, 4, 0xff))                   // a byte
		f.Add(append(bytes.Clone(as), 0xc0, 20))                        // cut short
		f.Add(append(bytes.Clone(as), 0xc1, 8, 1, 2, 3, 4, 5, 6, 7, 8)) // longer
		f.Add(append(bytes.Clone(as), 0xce, 14, 0, 15, 0xff, 18, 0xff, 22, 7))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		w.use(v, &script{in: in})
		v.survived(t)
	})
}
