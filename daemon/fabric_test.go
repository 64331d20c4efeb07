package daemon

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/directory"
)

// newFabric starts hosts of a fabric, 127.0.1.1 and so on, which know each other; the first is its manager.
func newFabric(t *testing.T, names ...string) map[string]*host {
	t.Helper()
	hosts := map[string]*host{}
	for _, name := range names {
		hosts[name] = newHost(t, "")
	}
	for i, name := range names {
		for j, other := range names {
			if i != j {
				hosts[name].write("peers.d/"+other+".yaml", fmt.Sprintf("name: %s\naddress: 127.0.1.%d\nlocal_address: 127.0.1.%d\nport: %d\nprotection: loopback\n", other, j+1, i+1, hosts[other].port))
			}
		}
	}
	for i, name := range names {
		main, err := os.ReadFile(hosts[name].conf)
		if err != nil {
			t.Fatal(err)
		}
		hosts[name].write("ironwarp.yaml", string(main)+fmt.Sprintf("fabric: {managers: [127.0.1.1], identity: 127.0.1.%d}\n", i+1))
		if _, err := hosts[name].api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return hosts
}

// exportTo exports something to whom its declaration allows.
func (h *host) exportTo(spec api.ExportSpec) {
	h.t.Helper()
	h.unlessLate("offered", func() error {
		_, err := h.api.AddExport(h.t.Context(), spec)
		return err
	})
}

// services are those of a name that a host finds, as PEER:NAME.
func (h *host) services(name string) (found []string) {
	all, err := h.api.FabricServices(h.t.Context(), name)
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range all {
		found = append(found, s.Peer+":"+s.Name)
	}
	return found
}

func TestDiskIsAttachedByTheNameOfItsService(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := hosts["alpha"], hosts["beta"], hosts["gamma"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"alpha", "gamma"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(gamma.services("disk"), " ") == "beta:disk" })
	at, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "disk"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if at.Name() != "beta/disk" || at.Service != "disk" {
		t.Errorf("attached %s by %q", at.Name(), at.Service)
	}
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "other"}, nil); err == nil || !strings.Contains(err.Error(), "no export other") {
		t.Errorf("attach a service that is not there: %v", err)
	}
	alpha.exportTo(api.ExportSpec{Name: "disk", Path: alpha.image("disk.img", 1<<20), Allow: []string{"beta", "gamma"}})
	eventually(t, "the directory has both", func() bool { return len(gamma.services("disk")) == 2 })
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "disk"}, nil); err == nil || !strings.Contains(err.Error(), "several hosts") {
		t.Errorf("attach a service that two hosts have: %v", err)
	}
}

// A disk that was attached by the name of its service is attached from where it is now, while nobody uses it.
func TestDiskFollowsItsService(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := hosts["alpha"], hosts["beta"], hosts["gamma"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"gamma"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(gamma.services("disk"), " ") == "beta:disk" })
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "disk"}, nil); err != nil {
		t.Fatal(err)
	}
	used := gamma.nbd("disk")
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	alpha.exportTo(api.ExportSpec{Name: "disk", Path: alpha.image("disk.img", 2<<20), Allow: []string{"gamma"}})
	eventually(t, "gamma hears of it", func() bool { return strings.Contains(gamma.log.String(), `event="export come" host=alpha`) })
	if at, err := gamma.api.Attachments(t.Context()); err != nil || at[0].Name() != "beta/disk" {
		t.Errorf("a disk that is used was moved: %+v, %v", at, err)
	}
	used.Conn.Close()
	eventually(t, "its client is gone", func() bool {
		at, err := gamma.api.Attachments(t.Context())
		return err == nil && at[0].Clients == 0
	})
	if err := alpha.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return len(gamma.services("disk")) == 0 })
	alpha.exportTo(api.ExportSpec{Name: "disk", Path: alpha.image("disk.img", 2<<20), Allow: []string{"gamma"}})
	eventually(t, "the disk is attached from alpha", func() bool {
		at, err := gamma.api.Attachments(t.Context())
		return err == nil && len(at) == 1 && at[0].Name() == "alpha/disk" && at[0].State == api.AttachReady
	})
}

// The directory tells and never decides: what it says of a host that is no peer, or that the disk's host does not permit, opens nothing.
func TestDirectoryThatLies(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta", "gamma")
	beta, gamma := hosts["beta"], hosts["gamma"]
	beta.exportTo(api.ExportSpec{Name: "private", Path: beta.image("disk.img", 1<<20), Allow: []string{"alpha"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(gamma.services("private"), " ") == "beta:private" })
	if at, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "private", TimeoutSeconds: 5}, nil); err == nil {
		t.Errorf("a disk that gamma may not have is attached: %+v", at)
	}
	if _, err := gamma.api.RemovePeer(t.Context(), "beta", true); err != nil {
		t.Fatal(err)
	}
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "private"}, nil); err == nil || !strings.Contains(err.Error(), "no peer of this host") {
		t.Errorf("attach from a host that is no peer: %v", err)
	}
}

func TestFabricIsShown(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	alpha, beta := hosts["alpha"], hosts["beta"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"alpha"}})
	eventually(t, "beta is a member", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.1.1"
	})
	eventually(t, "alpha has found out that it is the master", func() bool {
		s, err := alpha.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.1.1"
	})
	s, err := alpha.api.Fabric(t.Context())
	if err != nil || !s.Manager || s.GUID != directory.GUIDOf("127.0.1.1").String() || len(s.Managers) != 1 || s.Managers[0].State != "master" {
		t.Errorf("the manager shows %+v, %v", s, err)
	}
	paths, err := beta.api.FabricPaths(t.Context())
	if err != nil || len(paths) != 1 || paths[0].Peer != "alpha" || paths[0].LID == 0 {
		t.Errorf("paths %+v, %v", paths, err)
	}
	eventually(t, "both have subscribed", func() bool {
		subs, err := alpha.api.FabricSubscriptions(t.Context())
		return err == nil && len(subs) == 16
	})
	if guids, err := alpha.api.FabricGUIDs(t.Context()); err != nil || len(guids) != 2 {
		t.Errorf("GUIDs %+v, %v", guids, err)
	}
	if _, err := beta.api.FabricDrops(t.Context()); err == nil || !strings.Contains(err.Error(), "keeps no directory") {
		t.Errorf("a host without a directory shows drops: %v", err)
	}
	started := time.Now()
	beta.stop()
	eventually(t, "alpha hears of it", func() bool { return strings.Contains(alpha.log.String(), `event="host down" host=beta`) })
	t.Logf("after %v", time.Since(started))
}

// A manager takes a host out of a partition, also for a daemon that is started anew, and lets it in again.
func TestManagerTakesAHostOutOfAPartition(t *testing.T) {
	alpha, beta := labPair(t, "tcp")
	for _, x := range []struct {
		on   *host
		more string
	}{{alpha, "fabric: {managers: [127.0.0.2], identity: 127.0.0.2}\n"}, {beta, "fabric: {managers: [127.0.0.2], identity: 127.0.0.3, agent: true}\n"}} {
		main, err := os.ReadFile(x.on.conf)
		if err != nil {
			t.Fatal(err)
		}
		x.on.write("ironwarp.yaml", string(main)+x.more)
		if _, err := x.on.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "beta is in the fabric", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.0.2"
	})
	if err := alpha.attachIn("lab", "docs"); err != nil {
		t.Fatal(err)
	}
	c := alpha.nbd("docs")
	ok(t, c, cmdWrite, 0, 4096, make([]byte, 4096))
	restrict := func(q api.FabricPartitionsRequest) {
		t.Helper()
		q.Peer = "beta"
		if err := alpha.api.SetFabricPartitions(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	inLab := func(h *host) bool {
		for _, s := range h.d.streams() {
			if s.Partition == "lab" {
				return true
			}
		}
		return false
	}
	restrict(api.FabricPartitionsRequest{Partitions: []string{"thin"}})
	eventually(t, "streams of the partition end", func() bool { return !inLab(beta) })
	// Nor is it in it again by a fault in a file that is no part of that: neither when it is read again, nor at a start.
	beta.stop()
	beta.write("fabric.conf", "no_such_option 1\n")
	beta.start()
	if _, found := beta.d.partitions.Now().Table.Find("lab"); found {
		t.Error("a daemon whose fabric.conf has a fault has the partition in force")
	}
	with, err := os.ReadFile(beta.conf)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(config string) (inLab bool) {
		t.Helper()
		beta.write("ironwarp.yaml", config)
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, inLab = beta.d.partitions.Now().Table.Find("lab")
		return inLab
	}
	if reload(string(with)) {
		t.Error("after a reload with the fault it has")
	}
	if without, _, _ := strings.Cut(string(with), "fabric: {"); !reload(without) {
		t.Error("a host that its administrator has taken out of the fabric is not in its partition")
	}
	beta.write("fabric.conf", "")
	if reload(string(with)) {
		t.Error("a host that is in the fabric again is in the partition that its managers took it out of")
	}
	beta.stop()
	beta.start()
	// Whether a client has come back by now is chance; what decides about it is in force from the start.
	if _, found := beta.d.partitions.Now().Table.Find("lab"); found {
		t.Error("a daemon that was started anew has the partition in force")
	}
	eventually(t, "beta is in the fabric again", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.0.2"
	})
	if inLab(beta) {
		t.Error("a daemon that was started anew is in the partition")
	}
	if err := alpha.api.SetFabricPartitions(t.Context(), api.FabricPartitionsRequest{Peer: "beta", Partitions: []string{"nowhere"}}); err == nil || !strings.Contains(err.Error(), "no partition") {
		t.Errorf("a partition that is not there: %v", err)
	}
	restrict(api.FabricPartitionsRequest{All: true})
	eventually(t, "the disk goes on", func() bool { return inLab(beta) })
	ok(t, c, cmdRead, 0, 4096, nil)
}

// Who closes the daemon waits for what hears of changes, with the lock that a change needs.
func TestChangeThatIsHeardDoesNotHoldUpTheEnd(t *testing.T) {
	h := newHost(t, "")
	h.d.changing.Lock()
	closed := make(chan error, 1)
	go func() { closed <- h.d.Close() }()
	eventually(t, "the daemon's end waits for the lock", func() bool {
		stacks := make([]byte, 1<<20)
		return slices.ContainsFunc(strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n"), func(s string) bool {
			return strings.Contains(s, "(*Daemon).Close(") && strings.Contains(s, "(*changeLock).Lock(")
		})
	})
	h.d.onPKeys(nil) // cannot be made while another change is
	h.d.changing.Unlock()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("the daemon does not end")
	}
}

// A host that a manager has drained takes no new initiators, and takes them again when that ends.
func TestDrainedHostTakesNoInitiators(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	alpha, beta := hosts["alpha"], hosts["beta"]
	main, err := os.ReadFile(beta.conf)
	if err != nil {
		t.Fatal(err)
	}
	beta.write("ironwarp.yaml", strings.Replace(string(main), "identity: 127.0.1.2", "agent: true, identity: 127.0.1.2", 1))
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.1.2:%d", beta.disks(api.LUNSpec{Path: beta.image("lun.img", 1<<20)}))
	eventually(t, "beta is in the fabric", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.1.1"
	})
	refused := func() int {
		return strings.Count(beta.log.String(), "a manager of the fabric has drained this host: it takes no new streams;")
	}
	for _, drained := range []bool{true, false} {
		if err := alpha.api.DrainFabricHost(t.Context(), api.FabricDrainRequest{Peer: "beta", Drain: drained}); err != nil {
			t.Fatal(err)
		}
		before := refused()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}}
		c, err := d.DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(make([]byte, 48)) // no login: the target ends the connection
		_, _ = io.Copy(io.Discard, c)
		c.Close()
		if drained { // the log has it after the connection's end
			eventually(t, "the connection is refused", func() bool { return refused() > before })
		}
		want := map[bool]int{true: 1}[drained]
		if n := refused() - before; n != want {
			t.Errorf("drained %v: %d connections were refused for it", drained, n)
		}
	}
}
