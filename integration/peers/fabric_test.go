package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// fabricScene is a fabric of three hosts in IPsec: alpha and gamma keep the directory, and beta is a member with an export.
// The names of the export and what its disk has are the lab's canary, and each capture is judged.
type fabricScene struct {
	*scene
	gamma *node.Node
	wire  lab.Captures
}

// fabricConf makes an election take two seconds: three questions, of a half each.
const fabricConf = "sminfo_polling_timeout 500\npolling_retry_number 3\n"

// failover bounds what a new master takes by fabricConf, the host's own look at managers every two seconds, and a busy machine.
// By the settings that a fabric has without it, four questions of ten seconds each, it would take longer.
const failover = 35 * time.Second

func newFabricScene(t *testing.T) *fabricScene {
	t.Helper()
	lab.Require(t)
	binary := program.Path(t)
	l := lab.Start(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}})
	alpha, beta, gamma := node.New(l.Host("alpha"), binary), node.New(l.Host("beta"), binary), node.New(l.Host("gamma"), binary)
	s := &fabricScene{scene: &scene{t: t, alpha: alpha, beta: beta}, gamma: gamma}
	for _, n := range s.all() {
		wire, err := n.CaptureAll(t.Context(), lab.CaptureOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.wire = append(s.wire, wire...)
		n.More = serveMetrics
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("daemon of %s:\n%s", n.Name(), n.LogTail(6000))
			}
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, pair := range [][2]*node.Node{{alpha, beta}, {alpha, gamma}, {gamma, beta}} {
		if err := node.Join(t.Context(), pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range s.all() {
		conf := fabricConf
		if n == alpha {
			conf += "sm_priority 2\n" // the master, while it is there
		}
		s.part(n, s.managers(), conf)
		s.must(n, "reload")
	}
	return s
}

// managers are those of the fabric, as the configuration has them.
func (s *fabricScene) managers() string {
	return fmt.Sprintf("managers: [%s, %s]", s.alpha.Addr(), s.gamma.Addr())
}

func (s *fabricScene) all() []*node.Node { return []*node.Node{s.alpha, s.beta, s.gamma} }

// part writes down a host's part in the fabric, which holds from its next reload or start on.
func (s *fabricScene) part(n *node.Node, keys, conf string) {
	s.t.Helper()
	n.More = fmt.Sprintf("fabric: {%s, identity: %s}\n%s", keys, n.Addr(), serveMetrics)
	main := fmt.Sprintf("state_dir: %s\n%s", filepath.Join(n.Dir(), "state"), n.More)
	etc := filepath.Dir(n.Config)
	for path, text := range map[string]string{n.Config: main, filepath.Join(etc, "fabric.conf"): conf} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// status is a host's part in the fabric.
func (s *fabricScene) status(n *node.Node) api.FabricStatus {
	st, err := n.Client().Fabric(s.t.Context())
	if err != nil {
		return api.FabricStatus{Problem: &api.Error{Message: err.Error()}}
	}
	return st
}

// untilMaster waits until all these hosts ask the directory of the one that is the master.
func (s *fabricScene) untilMaster(master *node.Node, hosts ...*node.Node) {
	s.t.Helper()
	s.until(master.Name()+" is the master", func() bool {
		return !slices.ContainsFunc(hosts, func(n *node.Node) bool { return s.status(n).Master != master.Addr().String() })
	})
}

// finds reports whether a host finds a service on beta.
func (s *fabricScene) finds(n *node.Node, name string) bool {
	all, err := n.Client().FabricServices(s.t.Context(), name)
	return err == nil && len(all) == 1 && all[0].Peer == "beta"
}

// fabricStreams are those of the directory that a host has with a peer, by id.
func (s *fabricScene) fabricStreams(n *node.Node, peer string) (ids []string) {
	list, err := n.Client().Streams(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, x := range list {
		if x.Peer == peer && x.Service == "fabric" {
			ids = append(ids, x.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// logged reports whether a line of a daemon's log has all these.
func logged(n *node.Node, parts ...string) bool {
	for _, line := range strings.Split(n.LogTail(1<<20), "\n") {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			return true
		}
	}
	return false
}

// fabricDisk is the name of beta's export.
func (s *fabricScene) fabricDisk() string { return "disk-" + string(s.beta.Canary()) }

// addExport has beta export a disk of that name to all.
func (s *fabricScene) addExport(name string) {
	s.t.Helper()
	image := filepath.Join(s.beta.Dir(), name+".img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(fabricDiskSize), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "alpha", "--allow", "gamma", name, image)
}

// fabricDiskSize is in bytes.
const fabricDiskSize = 8 << 20

// TestFabricWithESP is the life of a fabric on three hosts whose streams are in ESP alone: a disk is attached by the name of
// its service; a Phase 2 delete pauses the directory's stream and ends nothing; when the master dies, the other manager is the
// master, hosts register there and hear of each other, and lookups go on; a host whose agent is on is drained, and what is up
// goes on; a blocked and a removed peer is in the directory no more. I/O on the disk is verified all the time.
func TestFabricWithESP(t *testing.T) {
	s := newFabricScene(t)
	first, second := s.alpha, s.gamma
	s.untilMaster(first, s.all()...)
	s.servesAll(s.alpha, isOfFabric)
	s.addExport(s.fabricDisk())
	s.until("the directory has the disk", func() bool { return s.finds(second, s.fabricDisk()) })
	s.must(second, "attach", "--service", s.fabricDisk())
	stop, done := make(chan struct{}), make(chan error, 1)
	list, err := second.Client().Attachments(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("attachments %+v, %v", list, err)
	}
	load := node.Load{URI: list[0].URI, Size: fabricDiskSize, Timeout: 4 * time.Minute}
	go func() {
		_, err := load.Run(context.WithoutCancel(t.Context()), second, stop)
		done <- err
	}()
	stopped := false
	finish := func() {
		if !stopped {
			stopped = true
			close(stop)
			if err := <-done; err != nil {
				t.Errorf("the disk: %v", err)
			}
		}
	}
	t.Cleanup(finish)
	moves := func() {
		t.Helper()
		before, err := second.DiskIO(t.Context(), s.fabricDisk())
		if err != nil {
			t.Fatal(err)
		}
		s.until("the disk's I/O goes on", func() bool {
			now, err := second.DiskIO(t.Context(), s.fabricDisk())
			return err == nil && now.WriteBytes+now.ReadBytes > before.WriteBytes+before.ReadBytes+1<<20 && now.Errors == 0
		})
	}
	moves()

	began := time.Now()
	step := func(what string) { t.Logf("%4.0f s: %s", time.Since(began).Seconds(), what) }
	step("a Phase 2 delete")
	before := s.fabricStreams(s.beta, first.Name())
	if len(before) == 0 {
		t.Fatal("beta has no stream of the directory's")
	}
	if _, err := s.beta.Client().DeleteSAs(t.Context(), first.Name(), ""); err != nil {
		t.Fatal(err)
	}
	s.addExport("second-" + string(s.beta.Canary()))
	s.until("the directory hears of another export", func() bool { return s.finds(second, "second-"+string(s.beta.Canary())) })
	if after := s.fabricStreams(s.beta, first.Name()); !slices.Equal(before, after) {
		t.Errorf("streams of the directory: %v before the delete, %v after it", before, after)
	}

	step("the master's daemon is killed")
	first.Kill()
	killed := time.Now()
	s.untilMaster(second, s.beta, second)
	if took := time.Since(killed); took > failover {
		t.Errorf("a new master after %v", took)
	}
	s.until("beta has registered with it", func() bool { return s.finds(second, s.fabricDisk()) })
	moves()
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.until("beta hears that the host is up", func() bool { return logged(s.beta, `event="host up"`, "host="+first.Name()) })
	s.untilMaster(first, s.all()...)
	s.until("the directory has the disk again", func() bool { return s.finds(first, s.fabricDisk()) })
	moves()

	step("a drained host")
	if _, err := first.Ironwarp(t.Context(), nil, "fabric", "drain", "beta"); err == nil || !strings.Contains(err.Error(), "agent does not answer: it is off") {
		t.Errorf("drain a host without an agent: %v", err)
	}
	s.part(s.beta, "agent: true, "+s.managers(), fabricConf)
	s.must(s.beta, "reload")
	s.until("the host is drained", func() bool {
		_, err := first.Ironwarp(t.Context(), nil, "fabric", "drain", "beta")
		if err != nil {
			t.Logf("not yet: %v", err)
		}
		return err == nil
	})
	if !s.status(s.beta).Drained {
		t.Error("beta does not show that it is drained")
	}
	if _, err := first.Ironwarp(t.Context(), nil, "attach", "beta/"+s.fabricDisk()); err == nil || !strings.Contains(err.Error(), "has drained it, so it takes no new streams") {
		t.Errorf("attach from a drained host: %v", err)
	}
	if st, err := s.beta.Client().Status(t.Context()); err != nil || !strings.Contains(st.LastRefused, "a manager of the fabric has drained this host") {
		t.Errorf("beta says %q of whom it has refused, %v", st.LastRefused, err)
	}
	moves()
	s.must(first, "fabric", "drain", "--off", "beta")
	s.must(first, "attach", "beta/second-"+string(s.beta.Canary()))

	step("who is out of the fabric")
	s.must(first, "block", "add", "--for", "1h", "--why", "repair", second.Name())
	s.until("the blocked host has no stream", func() bool { return len(s.fabricStreams(first, second.Name())) == 0 })
	s.until("beta hears that the blocked host is down", func() bool { return logged(s.beta, `event="host down"`, "host="+second.Name()) })
	s.must(first, "block", "rm", second.Name())
	s.until("it has a stream again", func() bool { return len(s.fabricStreams(first, second.Name())) > 0 })
	moves()
	finish()
	step("a host that says it is a manager")
	// Who says himself that he is a manager is none to others: they have no stream with him, and their agents hear nothing.
	s.part(s.beta, "managers: ["+s.beta.Addr().String()+"]", fabricConf)
	s.must(s.beta, "reload")
	s.untilMaster(s.beta, s.beta)
	if _, err := s.beta.Ironwarp(t.Context(), nil, "fabric", "drain", first.Name()); err == nil || !strings.Contains(err.Error(), "no stream with this manager") {
		t.Errorf("a host that is no manager drains another: %v", err)
	}
	s.part(s.beta, s.managers(), fabricConf)
	s.must(s.beta, "reload")
	s.untilMaster(first, s.beta)

	step("removed peers")
	// A manager is no peer that can be removed, before the configuration names it as one no more.
	if _, err := first.Ironwarp(t.Context(), nil, "peer", "rm", "--force", second.Name()); err == nil || !strings.Contains(err.Error(), "fabric has the manager "+second.Addr().String()) {
		t.Errorf("remove a peer that is a manager: %v", err)
	}
	s.must(first, "peer", "rm", "--force", "beta")
	s.until("a peer that is removed has no stream", func() bool { return len(s.fabricStreams(s.beta, first.Name())) == 0 })
	s.until("the other manager hears nothing of it, and keeps it", func() bool { return len(s.fabricStreams(s.beta, second.Name())) > 0 })
	step("the end")
	counts, err := s.wire.Stop()
	if err != nil || counts.ESP == 0 {
		t.Errorf("the captures prove nothing: %v, %v", counts, err)
	}
}
