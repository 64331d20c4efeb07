package sctp

import (
	"bytes"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// hoarder keeps all memory that it may keep.
type hoarder struct {
	mu    sync.Mutex // guards the fields below it
	more  sync.Cond
	total int
	kept  []hoarded
}

type hoarded struct {
	memory       assoc.Memory
	payload, was []byte
}

func (h *hoarder) Message(m *assoc.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total++
	h.more.Broadcast()
	if m.Memory != nil {
		m.Memory.Keep()
		h.kept = append(h.kept, hoarded{m.Memory, m.Payload, bytes.Clone(m.Payload)})
	}
	return false
}
func (h *hoarder) Event(assoc.Event) {}
func (h *hoarder) BatchEnd()         {}

// wait waits for so many messages altogether.
func (h *hoarder) wait(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.total < n {
		h.more.Wait()
	}
}

// release returns everything and how many buffers that was.
func (h *hoarder) release(t *testing.T) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	distinct := make(map[assoc.Memory]bool)
	for _, k := range h.kept {
		if !bytes.Equal(k.payload, k.was) {
			t.Error("a message changed while its memory was kept")
		}
		distinct[k.memory] = true
		k.memory.Release()
	}
	h.kept = nil
	return len(distinct)
}

// Memory that a Receiver keeps stays as it is, whatever arrives, and is used again when it
// is released. Who keeps all of it gets the rest without.
func TestKeptMemoryStays(t *testing.T) {
	h := &hoarder{}
	h.more.L = &h.mu
	eb := listen(t, "127.0.0.1", Config{Accept: func(*Assoc) assoc.Receiver { return h }})
	if !eb.sock.(*socket).gro {
		t.Skip("this kernel has no UDP_GRO: Linux 5.0 has it")
	}
	ea := listen(t, "127.0.0.1", Config{})
	a, err := ea.Dial(patient(t), eb.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return &sink{} }})
	if err != nil {
		t.Fatal(err)
	}
	const most = mostKept + readBuffers
	sent := 0
	ms := make([]assoc.Outgoing, 100) // what one datagram can bring
	for round := range 3 {
		for range 150 {
			for i := range ms {
				ms[i].Bufs = [][]byte{bytes.Repeat([]byte{byte(sent), byte(sent >> 8)}, 250)}
				sent++
			}
			if _, err := a.Send(patient(t), ms); err != nil {
				t.Fatal(err)
			}
		}
		h.wait(sent)
		if n := h.release(t); n == 0 || n > most {
			t.Errorf("round %d: %d buffers were kept, want 1 to %d", round, n, most)
		}
	}
}

// A buffer that is released while the reader has none is not kept for it.
func TestRestingReaderHasNoBuffers(t *testing.T) {
	p := new(bufferPool)
	b := p.get()
	b.Keep() // as a Receiver
	p.unkept(b)
	p.rest()
	b.Release()
	if len(p.free) != 0 || p.kept.Load() != 0 {
		t.Errorf("%d buffers are free, %d kept", len(p.free), p.kept.Load())
	}
	c := p.get()
	if p.unkept(c) != c {
		t.Error("a buffer that nobody keeps is replaced")
	}
	c.Keep()
	if p.unkept(c) == c {
		t.Error("a buffer that is kept is used")
	}
	if c.Release(); p.get() != c || p.kept.Load() != 0 {
		t.Error("a buffer that is not kept any more is not used")
	}
}
