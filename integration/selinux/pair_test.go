package selinux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/doctor"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/verbs"
)

// askVar is set in a process that asks a daemon to attach a disk: to the request, in JSON.
const askVar = "IRONWARP_ASK"

// alice is the user of whom all such processes are.
const alice = 53101

// patience bounds what takes moments, in an emulated machine on a busy host.
const patience = time.Minute

// station is a daemon.
type station struct {
	t    *testing.T
	dir  string
	port uint16
	log  *journal
	d    *daemon.Daemon
	api  *api.Client
}

// journal is a log.
type journal struct {
	mu sync.Mutex // guards the fields below it
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func newStation(t *testing.T, more string) *station {
	t.Helper()
	dir, err := os.MkdirTemp("", "iw") // short enough for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &station{t: t, dir: dir, port: iwarptest.FreePort(t), log: new(journal)}
	if err := os.Chmod(dir, 0o755); err != nil { // for alice
		t.Fatal(err)
	}
	s.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d}\nstate_dir: state\nruntime_dir: run\n%s", s.port, more))
	s.start()
	t.Cleanup(s.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", s.log)
		}
	})
	return s
}

func (s *station) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *station) config() string { return filepath.Join(s.dir, "ironwarp.yaml") }

func (s *station) socket() string { return filepath.Join(s.dir, "run", "ironwarp.sock") }

func (s *station) start() {
	s.t.Helper()
	d, err := daemon.Start(s.t.Context(), daemon.Options{Config: s.config(), Named: true, Version: "test",
		Log: func(config.Log) *slog.Logger { return slog.New(slog.NewTextHandler(s.log, nil)) }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.d, s.api = d, api.NewClient(s.socket())
}

func (s *station) stop() {
	s.api.Close()
	if err := s.d.Close(); err != nil {
		s.t.Errorf("close the daemon: %v", err)
	}
}

func (s *station) restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

// newPair is two hosts that are members of partition lab, about whose label the kernel decides. Beta offers docs and notes in it
// and plain in none, to alpha, where alice may attach them. services are beta's.
func newPair(t *testing.T, services string) (alpha, beta *station) {
	t.Helper()
	common := fmt.Sprintf("labels: {engine: auto}\npartitions: [{name: lab, pkey: 0x0012, label: 'system_u:object_r:lab_part_t:s0', port: %d, members: {127.0.0.2: full, 127.0.0.3: full}}]\n", iwarptest.FreePort(t))
	alpha, beta = newStation(t, common), newStation(t, common+services)
	for _, x := range []struct {
		on, other          *station
		name, mine, theirs string
	}{{beta, alpha, "alpha", "127.0.0.3", "127.0.0.2"}, {alpha, beta, "beta", "127.0.0.2", "127.0.0.3"}} {
		x.on.write("peers.d/"+x.name+".yaml", fmt.Sprintf("name: %s\naddress: %s\nlocal_address: %s\nport: %d\nprotection: loopback\ntransport: tcp\n", x.name, x.theirs, x.mine, x.other.port))
		if _, err := x.on.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, partition := range map[string]string{"docs": "lab", "notes": "lab", "plain": ""} {
		beta.write(name, "")
		image := filepath.Join(beta.dir, name)
		if err := os.Truncate(image, 1<<20); err != nil {
			t.Fatal(err)
		}
		if _, err := beta.api.AddExport(t.Context(), api.ExportSpec{Name: name, Path: image, Partition: partition, Allow: []string{"alpha"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := alpha.api.AddULP(t.Context(), api.ULPSpec{Name: "alice", Users: []string{fmt.Sprint(alice)}, Peers: []string{"beta"}}); err != nil {
		t.Fatal(err)
	}
	return alpha, beta
}

// question is what a process asks a daemon.
type question struct {
	Socket string
	UID    uint32
	api.AttachRequest
}

// reply is what it is answered.
type reply struct {
	api.Attachment
	Failed *api.Error
}

// ask is what the process does: it asks, and prints the reply in JSON.
func ask(text string) error {
	var q question
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return err
	}
	c := api.NewClientOn(q.Socket, func(context.Context) (net.Conn, error) { return otheruser.Dial(q.Socket, q.UID) })
	defer c.Close()
	var r reply
	var err error
	if r.Attachment, err = c.Attach(context.Background(), q.AttachRequest, nil); err != nil && !errors.As(err, &r.Failed) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// ask has a process of alice that runs under a label attach a disk of beta's.
func (s *station) ask(label string, q api.AttachRequest) (r reply) {
	s.t.Helper()
	q.Peer = "beta"
	text, err := json.Marshal(question{s.socket(), alice, q})
	if err != nil {
		s.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd, err := start(label, askVar+"="+string(text), &out)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &r)
	}
	if err != nil {
		s.t.Fatalf("ask as %s: %v: %s", label, err, &out)
	}
	return r
}

// inLab is the request for a disk of the partition.
func inLab(disk string) api.AttachRequest {
	return api.AttachRequest{Peer: "beta", Export: disk, Partition: "lab", TimeoutSeconds: patience.Seconds()}
}

func (s *station) attachAs(label string, q api.AttachRequest) api.Attachment {
	s.t.Helper()
	r := s.ask(label, q)
	if r.Failed != nil {
		s.t.Fatalf("%s attaches %s: %v", label, q.Export, r.Failed)
	}
	return r.Attachment
}

// refuses fails unless a process with a label is refused a disk of the partition, and told why.
func (s *station) refuses(label, disk string) {
	s.t.Helper()
	begin := time.Now()
	r := s.ask(label, inLab(disk))
	s.refused(r.Failed, label)
	if took := time.Since(begin); took > patience/2 {
		s.t.Errorf("%s is refused after %v", label, took)
	}
}

// refused checks that an error names the label, the partition and the kernel.
func (s *station) refused(e *api.Error, label string) {
	s.t.Helper()
	if e == nil {
		s.t.Fatalf("%s is not refused", label)
	}
	if e.Code != api.CodeForbidden {
		s.t.Errorf("%s is refused by code %s", label, e.Code)
	}
	for _, word := range []string{"label " + label, "partition lab", "SELinux (enforcing)"} {
		if !strings.Contains(e.Message, word) {
			s.t.Errorf("%q does not say %q", e.Message, word)
		}
	}
}

func (s *station) status() api.Status {
	s.t.Helper()
	v, err := s.api.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// streams are the IDs of the streams that a condition holds for, sorted.
func (s *station) streams(where func(api.Stream) bool) (ids []string) {
	s.t.Helper()
	for _, x := range s.status().Streams {
		if where(x) {
			ids = append(ids, x.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// inPartition are the streams of a partition.
func inPartition(name string) func(api.Stream) bool {
	return func(s api.Stream) bool { return s.Partition == name }
}

// labelled are the streams of partition lab with a label.
func labelled(label string) func(api.Stream) bool {
	return func(s api.Stream) bool { return s.Partition == "lab" && s.Label == label }
}

// hasOnly waits for streams of partition lab with a label, and fails if there are others.
func (s *station) hasOnly(label string) {
	s.t.Helper()
	until(s.t, "there are streams of the partition labelled "+label, func() bool { return len(s.streams(labelled(label))) > 0 })
	if all := s.streams(inPartition("lab")); len(all) != len(s.streams(labelled(label))) {
		s.t.Errorf("streams of the partition that are not all labelled %s: %+v", label, s.status().Streams)
	}
}

// denials is how many streams were ended since their labels may not use their partitions any more.
func (s *station) denials() (n uint64) {
	s.t.Helper()
	v, err := s.api.Resources(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range v.Events {
		if e.Kind == verbs.EventPartition.String() {
			n += e.Count
		}
	}
	return n
}

// exportInLab describes an export's use of the partition.
func (s *station) exportInLab(name string) (u api.PartitionUser) {
	s.t.Helper()
	all, err := s.api.Partitions(s.t.Context())
	if err != nil || len(all) != 1 {
		s.t.Fatalf("%+v, %v", all, err)
	}
	i := slices.IndexFunc(all[0].Users, func(u api.PartitionUser) bool { return u.Kind == "export" && u.Name == name })
	if i < 0 {
		s.t.Fatalf("no export %s: %+v", name, all[0])
	}
	return all[0].Users[i]
}

// permissive reports who says that SELinux is permissive: the audit, the doctor.
func (s *station) permissive() (audit, examined bool) {
	s.t.Helper()
	v, err := s.api.Audit(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range v.Requirements {
		audit = audit || r.ID == "R1" && slices.ContainsFunc(r.Weak, func(w api.Weakness) bool { return strings.Contains(w.Setting, "SELinux (permissive)") })
	}
	examined = slices.ContainsFunc(doctor.Run(s.t.Context(), doctor.Options{Config: s.config(), Named: true, Socket: s.socket(), Version: "test"}), func(f doctor.Finding) bool {
		return f.What == "labels" && f.Level == doctor.Warn && strings.Contains(f.Found, "SELinux (permissive)")
	})
	return audit, examined
}

// disk connects to the NBD socket of a disk.
func (s *station) disk(at api.Attachment) *nbdtest.Client {
	s.t.Helper()
	var c net.Conn
	until(s.t, "the NBD socket is there", func() (ok bool) {
		var err error
		c, err = net.Dial("unix", at.Socket)
		return err == nil
	})
	s.t.Cleanup(func() { c.Close() })
	cl, err := nbdtest.Connect(c, at.Export, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return cl
}

// nbdWrite is NBD's command.
const nbdWrite = 1

// write writes a block.
func write(c *nbdtest.Client) error {
	const size = 4096
	r, err := c.Do(0, nbdWrite, 0, size, make([]byte, size))
	if err == nil && r.Error != 0 {
		err = fmt.Errorf("NBD error %d", r.Error)
	}
	return err
}

// writer writes one block after another.
type writer struct {
	t    *testing.T
	name string
	done atomic.Int64
}

// newWriter writes to a disk until the test ends, or a write fails.
func newWriter(t *testing.T, name string, c *nbdtest.Client) *writer {
	w := &writer{t: t, name: name}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			if err := write(c); err != nil {
				if !stop.Load() {
					t.Errorf("%s: %v", name, err)
				}
				return
			}
			w.done.Add(1)
		}
	})
	t.Cleanup(func() {
		stop.Store(true)
		c.Close()
		wg.Wait()
	})
	return w
}

// goesOn waits until more has been written.
func (w *writer) goesOn() {
	w.t.Helper()
	from := w.done.Load()
	until(w.t, w.name+" is written to", func() bool { return w.done.Load() >= from+10 })
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never happened: %s", what)
		}
	}
}
