package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// 64 goroutines at one piece of memory: those of 48 streams whose peers access it,
// through the STag of the moment and through old ones, and 16 that take turns in ending
// the access, in every way there is, using the memory as their own, and opening it
// again. What one has once the revocation has returned is nobody else's (R12; RFC 5042
// section 6.2.2): it keeps its content, and the race detector finds every access in
// order.
func TestRevocationsOf64Goroutines(t *testing.T) {
	const accessors, revokers, turns, cell = 48, 16, 30, 16
	e := newEnd(t, Config{})
	mr := e.mr(accessors*cell, LocalWrite|RemoteRead|RemoteWrite)
	_, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	qp := e.qp

	var tag atomic.Uint32
	tag.Store(mr.STag())
	var over atomic.Bool
	var reached atomic.Int64
	var at sync.WaitGroup
	for i := range accessors {
		at.Go(func() {
			var old uint32
			for !over.Load() {
				stag := tag.Load()
				for _, s := range [...]uint32{stag, old} {
					need := []rdmap.Access{rdmap.RemoteWrite, rdmap.RemoteRead}[i%2]
					mem, pin, fault := e.dev.acquire(e.pd, qp, s, uint64(i*cell), cell, need)
					if fault != rdmap.FaultNone {
						continue
					}
					if need == rdmap.RemoteWrite {
						for j := range mem {
							mem[j] = byte(s)
						}
					} else if !bytes.Equal(mem, bytes.Repeat(mem[:1], cell)) {
						t.Errorf("a peer reads %x, which is torn", mem)
					}
					pin.Unpin()
					reached.Add(1)
				}
				old = stag
				runtime.Gosched()
			}
		})
	}

	ways := []struct {
		name   string
		revoke func(stag uint32) error
	}{
		{"MR.Invalidate", func(uint32) error { return mr.Invalidate() }},
		{"a peer's Send with Invalidate", func(stag uint32) error {
			if f := qp.invalidateRemote(stag); f != rdmap.FaultNone {
				return fmt.Errorf("%v", f)
			}
			return nil
		}},
		{"a local invalidate", func(stag uint32) error { return qp.invalidateLocal(stag) }},
		{"MR.Reregister without rights", func(uint32) error {
			_, err := mr.Reregister(0, mr.Len(), 0)
			return err
		}},
	}
	var turn sync.Mutex
	var at2 sync.WaitGroup
	for i := range revokers {
		at2.Go(func() {
			way := ways[i%len(ways)]
			for n := range turns {
				turn.Lock()
				for seen := reached.Load(); n%4 == 0 && reached.Load() == seen; { // some are at it
					runtime.Gosched()
				}
				if err := way.revoke(tag.Load()); err != nil {
					t.Errorf("%s: %v", way.name, err)
				}
				mine := bytes.Repeat([]byte{byte(i)}, mr.Len())
				copy(mr.Bytes(), mine)
				runtime.Gosched()
				if !bytes.Equal(mr.Bytes(), mine) {
					t.Errorf("%s: the memory has changed after it had returned", way.name)
				}
				stag, err := mr.Reregister(0, mr.Len(), RemoteRead|RemoteWrite)
				if err != nil {
					t.Error(err)
				}
				tag.Store(stag)
				turn.Unlock()
			}
		})
	}
	at2.Wait()
	over.Store(true)
	at.Wait()
	if reached.Load() == 0 {
		t.Error("nobody has reached the memory")
	}
	if err := mr.Deregister(); err != nil {
		t.Error(err)
	}
}

// 64 peers flood one region through one STag, each on a stream of its own, while one
// of them or the owner ends its use: when that is done the memory is the owner's, and
// each flood ends its own stream by an invalid STag.
func TestRevocationUnder64Floods(t *testing.T) {
	const peers, cell = 64, 512
	for name, revoke := range map[string]func(mr *MR, qp *QP) error{
		"MR.Invalidate": func(mr *MR, _ *QP) error { return mr.Invalidate() },
		"Reregister": func(mr *MR, _ *QP) error {
			_, err := mr.Reregister(0, 1, RemoteRead)
			return err
		},
		"Deregister": func(mr *MR, _ *QP) error { return mr.Deregister() },
		"a local invalidate": func(mr *MR, qp *QP) error {
			return qp.invalidateLocal(mr.STag())
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnd(t, Config{})
			e.cfg.MaxSend, e.cfg.MaxRecv = 1, 1
			mr := e.mr(peers*cell, LocalWrite|RemoteWrite)
			stag := mr.STag()
			var qps [peers]*QP
			var floods sync.WaitGroup
			for i := range peers {
				raw, l := iwarptest.Pair(iwarptest.Options{Direct: i%2 == 1})
				e.startOn(l)
				qps[i] = e.qp
				seg := append(tagged(true, rdmap.OpWrite, stag, uint64(i*cell), 0), bytes.Repeat([]byte{byte(i + 1)}, cell)...)
				floods.Go(func() {
					for raw.Send(seg) == nil {
						runtime.Gosched()
					}
				})
				go func() {
					for {
						if _, err := raw.Recv(); err != nil {
							raw.Close()
							return
						}
						raw.CloseWrite()
					}
				}()
			}
			ctx := testContext(t)
			for _, qp := range qps {
				for qp.Stats().RecvBytes == 0 && ctx.Err() == nil {
					runtime.Gosched()
				}
			}
			if err := revoke(mr, qps[0]); err != nil {
				t.Fatal(err)
			}
			mine := bytes.Repeat([]byte{0xaa}, peers*cell)
			copy(mr.Bytes(), mine)
			for i, qp := range qps {
				select {
				case <-qp.Done():
				case <-ctx.Done():
					t.Fatalf("the stream of flood %d does not end", i)
				}
				if err := qp.Err(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag}) {
					t.Errorf("flood %d ends with %v", i, err)
				}
			}
			floods.Wait()
			if !bytes.Equal(mr.Bytes(), mine) {
				t.Error("the memory has changed after the revocation")
			}
		})
	}
}
