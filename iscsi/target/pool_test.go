package target

import (
	"bytes"
	"errors"
	"testing"
)

// TestBuffersAreHandedOnEmpty: what one session has left in a buffer no other finds there.
func TestBuffersAreHandedOnEmpty(t *testing.T) {
	p := pool{most: 1 << 20}
	get := func(n int, user uint64) buffer {
		b, err := p.get(n, user)
		if err != nil || len(b.b) != n {
			t.Fatalf("%d bytes, want %d: %v", len(b.b), n, err)
		}
		return b
	}
	b := get(5000, 1)
	for i := range b.b {
		b.b[i] = 0xee
	}
	b.b = b.b[:100]
	p.put(b)
	again := get(4097, 1)
	if &again.b[0] != &b.b[0] {
		t.Error("a buffer is not used again")
	}
	p.put(again)
	other := get(8192, 2)
	if &other.b[0] != &b.b[0] || !bytes.Equal(other.b, make([]byte, 8192)) {
		t.Error("another session finds what was left")
	}
}

// registrar counts what is registered with it.
type registrar struct {
	n    int
	full bool
}

func (r *registrar) Register(b []byte) (any, error) {
	if r.full {
		return nil, errors.New("full")
	}
	r.n++
	return &b[0], nil
}

func (r *registrar) Deregister(any) { r.n-- }

// TestMemoryIsRegisteredWhileItIsKept: no more of it than the pool may keep, and none at the end.
func TestMemoryIsRegisteredWhileItIsKept(t *testing.T) {
	r := &registrar{}
	p := pool{registrar: r, most: 8 << 10}
	var all []buffer
	for range 4 {
		b, err := p.get(4096, 1)
		if err != nil || b.memory != any(&b.b[0]) {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	for _, b := range all {
		p.put(b)
	}
	if r.n != 2 {
		t.Errorf("%d buffers are registered, 2 may be kept", r.n)
	}
	p.drop()
	if r.full = true; r.n != 0 {
		t.Errorf("%d are left", r.n)
	}
	if b, err := p.get(1, 1); err == nil || b.b != nil {
		t.Error("memory that is not registered")
	}
}
