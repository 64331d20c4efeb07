package guard

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/ebpf"
)

// tunMark is on packets that came out of the tun of userland ESP, all 32 bits
// of it. It is set on every packet of that device as it comes in, and the
// filter goes with the device; packets of other devices come in with none.
const tunMark = 0x49575031

// markFilter is the name of the filter that sets it.
const markFilter = "ironwarp-decrypted"

// markProgram is an eBPF program (RFC 9669 section 4) of type SCHED_CLS:
//
//	r2 = tunMark
//	*(u32 *)(r1 + 8) = r2     // __sk_buff.mark
//	r0 = -1                   // TC_ACT_UNSPEC: go on
//	exit
var markProgram = []ebpf.Instruction{
	ebpf.New(0xb7, 0x02, 0, tunMark),
	ebpf.New(0x63, 0x21, 8, 0),
	ebpf.New(0xb7, 0x00, 0, 0xffffffff),
	ebpf.New(0x95, 0x00, 0, 0),
}

// adoptStep marks what comes out of a tun, and puts it into the group of devices
// that the port's packets may be routed to.
func adoptStep(k *kernel, g Spec, tun netlink.Link) step {
	dev := tun.Attrs()
	isSet := func() (bool, error) {
		if dev.Group != tunGroup {
			return false, nil
		}
		filters, err := k.FilterList(tun, netlink.HANDLE_MIN_INGRESS)
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && b.Name == markFilter {
				return true, nil
			}
		}
		return false, err
	}
	return step{
		do: func() (int, error) {
			if set, err := isSet(); set || err != nil {
				return 0, err
			}
			err := k.mark(dev.Index)
			if err == nil {
				err = k.LinkSetGroup(tun, tunGroup)
			}
			if err != nil && !errors.Is(err, syscall.ENODEV) {
				return 0, fmt.Errorf("%w: mark what comes out of %s: %w", ErrNoIPv6, dev.Name, err)
			}
			return 0, nil
		},
		check: func() ([]Hole, error) {
			if set, err := isSet(); set || err != nil {
				return nil, err
			}
			return []Hole{{Spec: g, Shut: true, What: fmt.Sprintf("%s is not in device group %d, or the filter %s at its ingress is missing: the link's own packets are blocked", dev.Name, tunGroup, markFilter),
				Fix: "restart the daemon, which adds it"}}, nil
		},
	}
}

func (k *kernel) mark(dev int) error {
	fd, err := ebpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, markProgram)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = k.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: dev, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("add a queueing discipline clsact: %w", err)
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: dev, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          fd, Name: markFilter, DirectAction: true,
	}
	if err := k.FilterReplace(f); err != nil {
		return fmt.Errorf("add a filter: %w", err)
	}
	return nil
}
