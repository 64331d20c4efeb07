package rnbd

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// powerCut makes a storage as it is after its host lost power.
func powerCut(r *ram) {
	copy(r.data, r.flushed)
	r.identity.Life = block.NewID()
}

var sector = bytes.Repeat([]byte{1}, 512)

// A server that lost power has forgotten what no flush covered: no flush that comes
// later may say that it is there.
func TestFlushFailsWhereAcknowledgedWritesMayBeLost(t *testing.T) {
	for name, c := range map[string]struct {
		write func(t *testing.T, d *Disk)
		then  func(r *ram)
		lost  bool
	}{
		"a write":           {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, powerCut, true},
		"a write of zeroes": {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpWriteZeroes, 0) }, powerCut, true},
		"a trim":            {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpTrim, 0) }, powerCut, true},
		"a write with FUA":  {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpWrite, block.FUA) }, powerCut, false},
		"a write with FUA before one without": {func(t *testing.T, d *Disk) {
			write(t, d, sector, 0)
			mustDo(t, d, block.OpWrite, block.FUA)
		}, powerCut, true},
		"a write and a flush": {func(t *testing.T, d *Disk) {
			write(t, d, sector, 0)
			mustDo(t, d, block.OpFlush, 0)
		}, powerCut, false},
		"nothing":                   {func(*testing.T, *Disk) {}, powerCut, false},
		"a write, and no power cut": {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, func(*ram) {}, false},
		"a write, and an orderly end": {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, func(r *ram) {
			copy(r.flushed, r.data)
			r.kept = append(r.kept, r.identity.Life)
			powerCut(r)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRAM(1 << 20)
			srv := startServer(t, ramExport("r", r))
			d := openDisk(t, connect(t, srv.addr), "r")
			c.write(t, d)
			srv.stop(t)
			c.then(r)
			startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", r))
			want := syscall.Errno(0)
			if c.lost {
				want = syscall.EIO
			}
			for range 2 {
				if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != want {
					t.Errorf("flush: %v, want %v", e, want)
				}
				if e := do(t, d, block.OpWrite, sector, 4096, 0, block.FUA); e != want {
					t.Errorf("write with FUA: %v, want %v", e, want)
				}
			}
			if err := d.Info().Err; errors.Is(err, ErrWritesLost) != c.lost {
				t.Errorf("state %v", err)
			}
			if !c.lost {
				return
			}
			if d.Close(); true {
				d = openDisk(t, d.c, "r")
			}
			mustDo(t, d, block.OpFlush, 0)
		})
	}
}

func mustDo(t *testing.T, d *Disk, op block.Op, fl block.Flags) {
	t.Helper()
	var p []byte
	n := uint32(512)
	switch op {
	case block.OpWrite:
		p = sector
	case block.OpFlush:
		n = 0
	}
	if e := do(t, d, op, p, 0, n, fl); e != 0 {
		t.Fatalf("%v: %v", op, e)
	}
}

// closeRefused is a session whose CLOSE fails.
type closeRefused struct{ rtrs.ServerHandler }

func (c closeRefused) Serve(r *rtrs.Request) {
	if msgType(r.Header) == msgClose {
		r.Complete(syscall.EIO)
		return
	}
	c.ServerHandler.Serve(r)
}

// A disk that lost writes fails although its server does not close the device.
func TestDiskThatLostWritesFailsWhateverTheServerCloses(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	write(t, d, sector, 0)
	srv.stop(t)
	powerCut(r)
	odd := NewServer(ServerConfig{})
	if err := odd.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { odd.Close() })
	startServerAt(t, srv.addr, rtrs.ServerConfig{NewSession: func(i rtrs.SessionInfo) (rtrs.ServerHandler, error) {
		h, err := odd.NewSession(i)
		return closeRefused{h}, err
	}})
	if e := do(t, d, block.OpWrite, sector, 0, 0, 0); e != syscall.EIO {
		t.Errorf("write: %v, want EIO", e)
	}
}
