package rdmalib

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pair connects a client and a server, and returns their queue pairs.
func pair(t *testing.T) (client, server *program, cq, sq uint32) {
	t.Helper()
	server, client = newProgram(t), newProgram(t)
	_, to := server.listen("127.0.0.1:0")
	id := client.id(2)
	client.resolve(id, to)
	cq, sq = client.qp(), server.qp()
	client.ok(client.connect(id, param(cq, "", 4, 4)))
	server.ok(server.accept(server.want(cmConnectRequest).id, 3, param(sq, "", 4, 4)))
	client.want(cmEstablished)
	server.want(cmEstablished)
	return client, server, cq, sq
}

// mapped is memory of its own that a program registers, and its key and STag.
func (p *program) mapped(n int) (mem []byte, lkey, rkey uint32) {
	p.t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		p.t.Fatal(err)
	}
	lkey, rkey, errno := p.e.RegMR(p.pd, unsafe.Pointer(&mem[0]), uint64(n), addrOf(mem), accessLocalWrite|accessRemoteWrite|accessRemoteRead)
	p.ok(errno)
	return mem, lkey, rkey
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// TestUnmappedAtOnce: a program that has deregistered memory may give it back to the kernel at once, whatever was using it: peers
// that write to it and read it, its own sends and receives. The process would end by a signal otherwise.
func TestUnmappedAtOnce(t *testing.T) {
	const size, part = 1 << 20, 64 << 10
	for name, use := range map[string]func(client, server *program, cq, sq, lkey, rkey, far uint32, mem, other []byte) uint32{
		"the peer writes to it": func(client, _ *program, cq, _, _, rkey, far uint32, mem, other []byte) uint32 {
			return client.keep(cq, Send{Op: SendWrite, RAddr: addrOf(mem), RKey: rkey}, SGE{addrOf(other), part, far})
		},
		"the peer reads it": func(client, _ *program, cq, _, _, rkey, far uint32, mem, other []byte) uint32 {
			return client.keep(cq, Send{Op: SendRead, RAddr: addrOf(mem), RKey: rkey}, SGE{addrOf(other), part, far})
		},
		"the peer sends to it": func(client, server *program, cq, sq, lkey, _, far uint32, mem, other []byte) uint32 {
			for server.e.PostRecv(sq, 1, &SGE{addrOf(mem), part, lkey}, 1) == 0 {
			}
			return client.keep(cq, Send{Op: SendSend}, SGE{addrOf(other), part, far})
		},
		"it is written to the peer": func(_, server *program, _, sq, lkey, rkey, far uint32, mem, other []byte) uint32 {
			return server.keep(sq, Send{Op: SendWrite, RAddr: addrOf(other), RKey: far}, SGE{addrOf(mem), part, lkey})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 15 {
				client, server, cq, sq := pair(t)
				mem, lkey, rkey := server.mapped(size)
				other, flkey, frkey := client.mapped(size)
				far := flkey
				if name == "it is written to the peer" {
					far = frkey
				}
				stop := make(chan struct{})
				var all sync.WaitGroup
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							use(client, server, cq, sq, lkey, rkey, far, mem, other)
							runtime.Gosched()
						}
					}
				})
				for range 200 {
					runtime.Gosched()
				}
				close(stop)
				server.ok(server.e.DeregMR(lkey))
				if err := unix.Munmap(mem); err != nil {
					t.Fatal(err)
				}
				all.Wait()
				client.ok(client.e.DestroyQP(cq))
				server.ok(server.e.DestroyQP(sq))
				client.ok(client.e.DeregMR(flkey))
				unix.Munmap(other)
			}
		})
	}
}

// keep posts what there is room for, and takes completions.
func (p *program) keep(q uint32, s Send, sge SGE) (n uint32) {
	s.SG, s.NSGE, s.Flags = &sge, 1, FlagSignaled
	for n < 8 {
		if done, errno := p.e.PostSend(q, &s, 1); done == 0 || errno != 0 {
			break
		}
		n++
	}
	for p.ring.Head != load(&p.ring.Tail) {
		atomic.AddUint64(&p.ring.Head, 1)
	}
	return n
}
