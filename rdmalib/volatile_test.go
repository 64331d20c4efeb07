package rdmalib

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// TestMemoryThatChangesWhileItIsSent: an adapter reads memory once, so a program may change what it sends, and the peer gets old
// bytes or new ones. QEMU does so, which moves the memory of a guest that runs. The stream would end by a wrong CRC otherwise.
func TestMemoryThatChangesWhileItIsSent(t *testing.T) {
	const size = 256 << 10
	for name, use := range map[string]func(client, server *program, cq, sq uint32, mine, far SGE, from, to uint32){
		"a Write": func(client, _ *program, cq, _ uint32, mine, far SGE, _, to uint32) {
			client.done(cq, Send{Op: SendWrite, RAddr: far.Addr, RKey: to}, mine)
		},
		"a Send": func(client, server *program, cq, sq uint32, mine, far SGE, _, _ uint32) {
			server.ok(server.e.PostRecv(sq, 1, &far, 1))
			client.done(cq, Send{Op: SendSend}, mine)
			server.drained(t)
		},
		"a Read by the peer, of what it can't write": func(_, server *program, _, sq uint32, mine, far SGE, from, to uint32) {
			server.done(sq, Send{Op: SendRead, RAddr: mine.Addr, RKey: from}, far)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server, cq, sq := pair(t)
			mem, _, _ := client.mapped(size)
			lkey, from, errno := client.e.RegMR(client.pd, unsafe.Pointer(&mem[0]), size, addrOf(mem), accessRemoteRead)
			client.ok(errno)
			other, flkey, to := server.mapped(size)
			var changed sync.WaitGroup
			var over atomic.Bool
			changed.Go(func() {
				for i := 0; !over.Load(); i++ {
					for at := i % 64; at < size; at += 64 {
						mem[at]++
					}
					runtime.Gosched()
				}
			})
			for range 300 {
				use(client, server, cq, sq, SGE{addrOf(mem), size, lkey}, SGE{addrOf(other), size, flkey}, from, to)
				if t.Failed() {
					break
				}
			}
			over.Store(true)
			changed.Wait()
		})
	}
}

// done posts a signaled work request with one piece of memory, and waits for its end, which has to be a good one.
func (p *program) done(q uint32, s Send, sge SGE) {
	p.t.Helper()
	s.SG, s.NSGE, s.Flags = &sge, 1, FlagSignaled
	_, errno := p.e.PostSend(q, &s, 1)
	p.ok(errno)
	p.drained(p.t)
}

// drained waits for a completion, which has to be a good one.
func (p *program) drained(t *testing.T) {
	t.Helper()
	at := p.ring.Head & uint64(p.ring.Mask)
	p.drain()
	if wc := unsafe.Slice(p.ring.WC, p.ring.Mask+1)[at]; wc.Status != 0 {
		t.Errorf("a work request has ended with status %d", wc.Status)
	}
}
