package main

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/internal/ebpf"
)

// lose makes a host drop each incoming packet with probability p, by an XDP
// program, which sees packets as they come off the wire, before the kernel joins
// any. It goes away with the host.
func lose(h *lab.Host, p float64) error {
	return h.Do(func() error {
		dev, err := netlink.LinkByName(h.Dev())
		if err != nil {
			return err
		}
		fd, err := ebpf.Load(unix.BPF_PROG_TYPE_XDP, dropProgram(p))
		if err != nil {
			return leftOut(fmt.Sprintf("packets cannot be lost on purpose here: %v", err))
		}
		defer unix.Close(fd)
		if err := netlink.LinkSetXdpFdWithFlags(dev, fd, unix.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Errorf("lose packets on %s: %w", h.Name(), err)
		}
		return nil
	})
}

// dropProgram is an eBPF program (RFC 9669) of type XDP:
//
//	r0 = bpf_get_prandom_u32()
//	r1 = p * (1<<32 - 1)
//	if r0 > r1 goto pass
//	r0 = XDP_DROP
//	exit
//	pass: r0 = XDP_PASS
//	exit
func dropProgram(p float64) []ebpf.Instruction {
	const (
		call, mov32, jgt, mov64, exit = 0x85, 0xb4, 0x2d, 0xb7, 0x95

		getPrandom = 7
		drop, pass = 1, 2
	)
	return []ebpf.Instruction{
		ebpf.New(call, 0, 0, getPrandom),
		ebpf.New(mov32, 0x01, 0, uint32(p*(1<<32-1))),
		ebpf.New(jgt, 0x10, 2, 0),
		ebpf.New(mov64, 0, 0, drop),
		ebpf.New(exit, 0, 0, 0),
		ebpf.New(mov64, 0, 0, pass),
		ebpf.New(exit, 0, 0, 0),
	}
}
