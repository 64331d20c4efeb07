package attack

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	nvmetarget "github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	subsystemNQN = "nqn.2026-01.org.ironwarp:disk"
	hostNQN      = "nqn.2026-01.org.ironwarp:honest"
	otherNQN     = "nqn.2026-01.org.ironwarp:hostile"
)

// subsystem serves a disk to NVMe hosts on loopback, and returns the portal.
func (v *target) subsystem(cfg nvmetarget.Config, admits func(nvmetarget.Origin, string) bool, d *ramDisk) netip.AddrPort {
	v.Helper()
	srv := nvmetarget.NewServer(cfg)
	ns := must(nvmetarget.NewNamespace(nvmetarget.NamespaceConfig{Medium: d}))(v.T)
	if err := errors.Join(srv.Set(nvmetarget.Subsystem{NQN: subsystemNQN, Admits: admits}), srv.Attach(subsystemNQN, 1, ns)); err != nil {
		v.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ln := must(v.dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}}))(v.T)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, ln, v.ulp) }()
	v.Cleanup(func() {
		cancel()
		if d.hold != nil {
			close(d.hold)
		}
		if err := <-done; err != nil {
			v.Error(err)
		}
	})
	return ln.Addr()
}

// nvmeHost connects a host.
func (v *target) nvmeHost(at netip.AddrPort, nqn string, id byte) (*nvmetest.Host, error) {
	h, err := nvmetest.Connect(v.Context(), at, nil, subsystemNQN, nqn, block.ID{id})
	if err == nil {
		v.Cleanup(h.Admin.Close)
	}
	return h, err
}

// nvmeQueue connects a host and an I/O queue.
func (v *target) nvmeQueue(at netip.AddrPort) *nvmetest.Queue {
	v.Helper()
	h := must(v.nvmeHost(at, hostNQN, 1))(v.T)
	q := must(h.Queue(v.Context(), 1))(v.T)
	v.Cleanup(q.Close)
	return q
}

// onDisk is a command on the first blocks of the disk.
func onDisk(q *nvmetest.Queue, op nvme.Opcode, blocks uint32) nvme.Command {
	c := q.New(op)
	c.SetNSID(1)
	c.SetRange(0, blocks)
	return c
}

// TestMemoryOfAnNVMeHost: of the memory that a host names for a command no more is written than it says, and data in a
// capsule are within what has come.
func TestMemoryOfAnNVMeHost(t *testing.T) {
	run(t,
		attack{"behind what it says", checks.ExactWindow, func(v *target) bool {
			q := v.nvmeQueue(v.subsystem(nvmetarget.Config{}, nil, newRAMDisk()))
			untouched := bytes.Repeat([]byte{0xaa}, 4096)
			mr := must(q.Memory(bytes.Clone(untouched), verbs.LocalWrite|verbs.RemoteWrite))(v.T)
			c := onDisk(q, nvme.Read, 8)
			c.SetSGL(nvme.SGL{Type: nvme.KeyedBlock, Length: 512, Key: mr.STag()})
			must(q.Do(v.Context(), c))(v.T)
			return !bytes.Equal(mr.Bytes()[512:], untouched[512:])
		}},
		attack{"behind a capsule", checks.Bounds, func(v *target) bool {
			q := v.nvmeQueue(v.subsystem(nvmetarget.Config{}, nil, newRAMDisk()))
			c := onDisk(q, nvme.Write, 1)
			c.SetSGL(nvme.SGL{Type: nvme.DataBlockOffset, Address: 4096, Length: 512})
			e := must(q.Do(v.Context(), c))(v.T)
			return e.Status == nvme.Success
		}},
	)
}

// TestControllerOfAnotherNVMeHost gets no queue of somebody else's, and is not replaced in its name.
func TestControllerOfAnotherNVMeHost(t *testing.T) {
	run(t,
		attack{"gets a queue", checks.SessionOwner, func(v *target) bool {
			at := v.subsystem(nvmetarget.Config{}, nil, newRAMDisk())
			his := must(v.nvmeHost(at, hostNQN, 1))(v.T)
			mine := *must(v.nvmeHost(at, otherNQN, 2))(v.T)
			mine.Controller = his.Controller
			q, err := mine.Queue(v.Context(), 1)
			if err == nil {
				q.Close()
			}
			return err == nil
		}},
		attack{"is replaced", checks.SessionOwner, func(v *target) bool {
			at := v.subsystem(nvmetarget.Config{}, nil, newRAMDisk())
			his := must(v.nvmeHost(at, hostNQN, 1))(v.T)
			_, err := v.nvmeHost(at, otherNQN, 1)
			if err != nil {
				if _, err := his.Admin.Do(v.Context(), his.Admin.New(nvme.AdminKeepAlive)); err != nil {
					v.Errorf("the controller does not go on: %v", err)
				}
			}
			return err == nil
		}},
	)
}

// TestSubsystemThatAnNVMeHostMayNotSee: it is not in its discovery log, and lets it not in.
func TestSubsystemThatAnNVMeHostMayNotSee(t *testing.T) {
	admits := func(_ nvmetarget.Origin, host string) bool { return host == hostNQN }
	run(t,
		attack{"is told of", checks.Admission, func(v *target) bool {
			at := v.subsystem(nvmetarget.Config{}, admits, newRAMDisk())
			h := must(nvmetest.Connect(v.Context(), at, nil, nvme.DiscoveryNQN, otherNQN, block.ID{2}))(v.T)
			defer h.Admin.Close()
			c := h.Admin.New(nvme.AdminGetLogPage)
			c.SetDWord(10, uint32(nvme.LogDiscovery)|1023<<16)
			b, e, err := h.Admin.In(v.Context(), c, 4096)
			if err != nil || e.Status != nvme.Success {
				v.Errorf("%v %v", e.Status, err)
			}
			return bytes.Contains(b, []byte(subsystemNQN))
		}},
		attack{"lets it in", checks.Admission, func(v *target) bool {
			_, err := v.nvmeHost(v.subsystem(nvmetarget.Config{}, admits, newRAMDisk()), otherNQN, 2)
			return err == nil
		}},
	)
}

// TestNVMeHostsWithoutEnd: what one peer has of the connections and controllers is bounded, and what a host has under way.
func TestNVMeHostsWithoutEnd(t *testing.T) {
	run(t,
		attack{"connections without Connect", checks.HalfOpen, func(v *target) bool {
			at := v.subsystem(nvmetarget.Config{}, nil, newRAMDisk())
			for range 33 {
				q, err := nvmetest.Dial(v.Context(), at, nvmetest.Options{Depth: 2})
				if err != nil {
					return false
				}
				v.Cleanup(q.Close)
			}
			return true
		}},
		attack{"controllers", checks.PeerQuota, func(v *target) bool {
			at := v.subsystem(nvmetarget.Config{MaxControllers: 4, MaxOfPeer: 2}, nil, newRAMDisk())
			for n := range byte(3) {
				if _, err := v.nvmeHost(at, hostNQN, n+1); err != nil {
					return false
				}
			}
			return true
		}},
		attack{"commands", checks.CommandWindow, func(v *target) bool {
			d := newRAMDisk()
			d.hold = make(chan struct{})
			q := v.nvmeQueue(v.subsystem(nvmetarget.Config{}, nil, d))
			const more = 33
			for range more {
				c := onDisk(q, nvme.Write, 1)
				c.SetSGL(nvme.SGL{Type: nvme.DataBlockOffset, Length: 512})
				if err := q.Send(append(c, make([]byte, 512)...)); err != nil {
					return false
				}
			}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for late := time.After(patience); d.held.Load() < more; {
				select {
				case <-q.QP.Done():
					return false
				case <-late:
					v.Fatalf("the queue has not ended, and %d commands are carried out", d.held.Load())
				case <-tick.C:
				}
			}
			return true
		}},
	)
}
