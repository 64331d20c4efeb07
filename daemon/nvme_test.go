package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
)

const (
	nvmeNQN  = "nqn.2026-01.org.example:disks"
	nvmeHost = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111"
)

// nvmeConnect connects a host of this machine to a subsystem at a port.
func nvmeConnect(t *testing.T, port uint16, host string) (*nvmetest.Host, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	t.Cleanup(cancel)
	h, err := nvmetest.Connect(ctx, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), nil, nvmeNQN, host, block.ID{1})
	if err == nil {
		t.Cleanup(h.Admin.Close)
	}
	return h, err
}

// onBlocks is a command on the first eight blocks of namespace 1.
func onBlocks(q *nvmetest.Queue, op nvme.Opcode) nvme.Command {
	c := q.New(op)
	c.SetNSID(1)
	c.SetRange(0, 8)
	return c
}

// TestHostsUseADiskOverNVMe: a subsystem of a file is there after a reload; an allowed host writes to its disk, another
// sees nothing; the namespace grows, goes and comes, of which the host is told; the controller is listed, and ended by
// request.
func TestHostsUseADiskOverNVMe(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	path := beta.image("other.img", 4<<20)
	port := iwarptest.FreePort(t)
	declare := func(more string) {
		t.Helper()
		beta.write("nvme.d/disks.yaml", fmt.Sprintf("{name: disks, nqn: %q, port: %d, peers: [alpha], %s}", nvmeNQN, port, more))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	declare(fmt.Sprintf("hosts: [%q], namespaces: [{nsid: 1, path: other.img}]", nvmeHost))
	subsystem := func() api.NVMeSubsystem {
		t.Helper()
		s, err := beta.api.NVMeSubsystem(t.Context(), "disks")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	eventually(t, "the subsystem is ready", func() bool { return subsystem().State == api.TargetReady })
	if _, err := nvmeConnect(t, port, nvmeHost+"x"); err == nil || !strings.Contains(err.Error(), "invalid host") {
		t.Errorf("a host that is not named: %v", err)
	}
	h, err := nvmeConnect(t, port, nvmeHost)
	if err != nil {
		t.Fatal(err)
	}
	q, err := h.Queue(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	data := bytes.Repeat([]byte("nvme"), 1024)
	if e, err := q.Out(t.Context(), onBlocks(q, nvme.Write), data); err != nil || e.Status != nvme.Success {
		t.Fatalf("%v %v", e, err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b[:4096], data) {
		t.Errorf("the file has not what was written: %v", err)
	}
	flush := q.New(nvme.Flush)
	flush.SetNSID(1)
	if e, err := q.Do(t.Context(), flush); err != nil || e.Status != nvme.Success {
		t.Fatalf("%v %v", e, err)
	}
	v := subsystem()
	took := map[string]uint64{}
	for _, l := range v.Units[0].Latency {
		took[l.Operation] = l.Count
	}
	if io := v.Units[0].IO; io.Writes != 1 || io.WriteBytes != 4096 || io.Reads != 0 || fmt.Sprint(took) != "map[flush:1 write:1]" {
		t.Errorf("the namespace's figures are %+v, %v", io, took)
	}
	if v.Controllers != 1 || v.Connects != 1 || v.Refused != 1 || v.Units[0].UUID == "" || len(v.Portals) != 1 {
		t.Errorf("%+v", v)
	}
	all, err := beta.api.NVMeControllers(t.Context())
	if err != nil || len(all) != 1 || all[0].Peer != "alpha" || all[0].Host != nvmeHost || all[0].Queues != 1 || all[0].IO.WriteBytes != 4096 || all[0].Subsystem != "disks" {
		t.Errorf("%+v %v", all, err)
	}
	events := h.Admin.New(nvme.AdminSetFeatures)
	events.SetDWord(10, uint32(nvme.FeatureAsyncEvents))
	events.SetDWord(11, nvme.EventNamespaces)
	if e, err := h.Admin.Do(t.Context(), events); err != nil || e.Status != nvme.Success {
		t.Fatalf("%v %v", e, err)
	}
	told := func(what string, change func()) {
		t.Helper()
		c := h.Admin.New(nvme.AdminAsyncEvent)
		if err := h.Admin.Send(c); err != nil {
			t.Fatal(err)
		}
		change()
		if e, err := h.Admin.Wait(t.Context(), c.ID()); err != nil || nvme.AsyncEvent(e.Result) != nvme.EventNamespaceChanged {
			t.Fatalf("%s: %+v %v", what, e, err)
		}
		c = h.Admin.New(nvme.AdminGetLogPage)
		c.SetDWord(10, uint32(nvme.LogChangedNamespaces)|1023<<16)
		if b, e, err := h.Admin.In(t.Context(), c, 4096); err != nil || e.Status != nvme.Success || b[0] != 1 {
			t.Fatalf("%s: %v %v, namespace %d has changed", what, e, err, b[0])
		}
	}
	told("grown", func() {
		if _, err := beta.api.ResizeExport(t.Context(), config.NamespaceExport("disks", 1), api.ResizeRequest{Size: 8 << 20}); err != nil {
			t.Fatal(err)
		}
	})
	told("gone", func() { declare("") })
	if e, err := q.Out(t.Context(), onBlocks(q, nvme.Write), data); err != nil || e.Status.Code() != nvme.InvalidNamespace {
		t.Errorf("%v %v", e, err)
	}
	told("come", func() { declare("namespaces: [{nsid: 1, path: other.img, read_only: true}]") })
	if e, err := q.Out(t.Context(), onBlocks(q, nvme.Write), data); err != nil || e.Status.Code() != nvme.WriteProtected {
		t.Errorf("%v %v", e, err)
	}
	if got, e, err := q.In(t.Context(), onBlocks(q, nvme.Read), 4096); err != nil || e.Status != nvme.Success || !bytes.Equal(got, data) {
		t.Errorf("%v %v", e, err)
	}
	if _, err := beta.api.EndNVMeController(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	<-q.QP.Done()
	eventually(t, "nothing is left of it", func() bool {
		all, err := beta.api.NVMeControllers(t.Context())
		return err == nil && len(all) == 0 && beta.used(t, config.ServiceTargets) == 0
	})
	if err := beta.api.RemoveNVMeSubsystem(t.Context(), "disks", false); err != nil {
		t.Fatal(err)
	}
	if _, err := nvmeConnect(t, port, nvmeHost); err == nil {
		t.Error("a subsystem that was removed is there")
	}
}
