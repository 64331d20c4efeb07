package history

import (
	"io"
	"net"
	"sync"
	"testing"
)

// wire is the path between two daemons. It can be cut, and be away for a while.
type wire struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, to: to, conns: map[net.Conn]bool{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		ln.Close()
		w.setDown(true)
		w.wg.Wait()
	})
	return w
}

func (w *wire) port() uint16 { return w.ln.Addr().(*net.TCPAddr).AddrPort().Port() }

func (w *wire) accept() {
	for {
		near, err := w.ln.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() {
			defer near.Close()
			if w.isDown() {
				return
			}
			far, err := net.Dial("tcp", w.to)
			if err != nil {
				return
			}
			defer far.Close()
			if !w.add(near, far) {
				return
			}
			defer w.remove(near, far)
			done := make(chan struct{})
			go func() {
				defer close(done)
				io.Copy(far, near)
				far.Close()
				near.Close()
			}()
			io.Copy(near, far)
			far.Close()
			near.Close()
			<-done
		})
	}
}

func (w *wire) isDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}

func (w *wire) add(cs ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return false
	}
	for _, c := range cs {
		w.conns[c] = true
	}
	return true
}

func (w *wire) remove(cs ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range cs {
		delete(w.conns, c)
	}
}

// cut ends all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		// What is on its way is lost, as when a host disappears.
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
}

// setDown takes the path away, or brings it back.
func (w *wire) setDown(down bool) {
	w.mu.Lock()
	w.down = down
	w.mu.Unlock()
	if down {
		w.cut()
	}
}
