package rdmalib

import (
	"syscall"
	"testing"
	"unsafe"
)

// TestKeyOfAWindow: a program chooses the lower 8 bits of a window's STag, and no more, and the peer uses what it has chosen.
func TestKeyOfAWindow(t *testing.T) {
	client, server, cq, sq := pair(t)
	mem := make([]byte, 4096)
	server.pin.Pin(&mem[0])
	lkey, _, errno := server.e.RegMR(server.pd, unsafe.Pointer(&mem[0]), 4096, addrOf(mem), accessLocalWrite|accessRemoteWrite|accessBind)
	server.ok(errno)
	other, flkey, _ := client.mapped(4096)
	mw, rkey, errno := server.e.AllocMW(server.pd)
	server.ok(errno)
	bind := func(key uint32) syscall.Errno {
		s := Send{ID: 1, Op: SendBind, Flags: FlagSignaled, MW: mw, RKey: key, Access: accessRemoteWrite, NSGE: 1, SG: &SGE{addrOf(mem), 64, lkey}}
		done, errno := server.e.PostSend(sq, &s, 1)
		if (done == 1) != (errno == 0) {
			t.Errorf("%d posted, %v", done, errno)
		}
		return errno
	}
	for name, key := range map[string]uint32{"0": 0, "another index": rkey + 0x101, "the last key": rkey} {
		if errno := bind(key); errno != syscall.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
	for i := range byte(3) {
		rkey = rkey&^0xff | (rkey+1)&0xff
		server.ok(bind(rkey))
		server.drain()
		other[0] = i + 1
		s := Send{ID: 1, Op: SendWrite, Flags: FlagSignaled, RAddr: addrOf(mem), RKey: rkey, NSGE: 1, SG: &SGE{addrOf(other), 1, flkey}}
		_, errno := client.e.PostSend(cq, &s, 1)
		client.ok(errno)
		s = Send{ID: 2, Op: SendRead, Flags: FlagSignaled} // of nothing: behind the Write
		_, errno = client.e.PostSend(cq, &s, 1)
		client.ok(errno)
		client.drain()
		client.drain()
		if mem[0] != i+1 {
			t.Errorf("bind %d: what the peer writes does not come", i)
		}
		s = Send{ID: 3, Op: SendInvalidate, Flags: FlagSignaled, RKey: rkey}
		_, errno = server.e.PostSend(sq, &s, 1)
		server.ok(errno)
		server.drain()
	}
	server.ok(server.e.DeallocMW(mw))
}
