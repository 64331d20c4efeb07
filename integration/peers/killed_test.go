package peers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestKilledDaemonsAreNotQuoted kills the daemon at one end, and then that at the
// other, while a disk's data comes to it by ESP: strongSwan lives on, so the kernel
// decrypts packets for which there is no socket any more, and would answer them with an
// ICMP error that quotes them. The control at the end removes that part of a killed
// daemon's guard: then the data is on the wire.
func TestKilledDaemonsAreNotQuoted(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", "sctp-udp"); err != nil {
		t.Fatal(err)
	}
	secret := make([]byte, 16)
	rand.Read(secret)
	canary := []byte(hex.EncodeToString(secret))
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, bytes.Repeat(canary, (8<<20)/len(canary)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "id:"+s.alpha.Addr().String(), "disk", image)
	s.must(s.alpha, "attach", "beta/disk")
	file := filepath.Join(t.TempDir(), "wire.pcap")
	wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{File: file, SnapLen: 1 << 16, Unjudged: "the control at the end has to find the data"})
	if err != nil {
		t.Fatal(err)
	}
	// ready waits for the disk and returns its path.
	ready := func() (uri string) {
		t.Helper()
		s.until("the disk is there", func() bool {
			list, err := s.alpha.Client().Attachments(t.Context())
			if err != nil || len(list) != 1 || list[0].State != api.AttachReady {
				return false
			}
			uri = list[0].URI
			return true
		})
		return uri
	}
	// copies copies the disk over and over, so that data is on its way whenever somebody is killed.
	copies := func(args ...string) (stop func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				cmd := s.alpha.Command(ctx, "nbdcopy", args...)
				cmd.WaitDelay = time.Second
				if cmd.Run() != nil {
					return // its daemon was killed, for one
				}
			}
		}()
		stop = func() { cancel(); <-ended }
		t.Cleanup(stop)
		return stop
	}
	unanswered := func(n *node.Node) string {
		t.Helper()
		out, err := n.Run(t.Context(), "sh", "-c", "awk '/^Udp:/ && NR > 1 { print $3 }' /proc/net/snmp | tail -n 1")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// found counts the packets on the wire with the data.
	found := func() int {
		t.Helper()
		if _, err := wire.Count(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(data, canary)
	}
	write := func(uri string) []string { return []string{"--destination-is-zero", image, uri} }
	read := func(uri string) []string { return []string{uri, "null:"} }
	for _, end := range []struct {
		what    string
		killed  *node.Node
		args    func(uri string) []string
		moved   func(io api.IO) uint64
		control bool
	}{
		{"the exporting end, while it is written to", s.beta, write, func(io api.IO) uint64 { return io.WriteBytes }, false},
		{"the attaching end, while it reads", s.alpha, read, func(io api.IO) uint64 { return io.ReadBytes }, false},
		{"control", s.beta, write, func(io api.IO) uint64 { return io.WriteBytes }, true},
	} {
		uri := ready()
		before, err := s.alpha.DiskIO(t.Context(), "disk")
		if err != nil {
			t.Fatal(err)
		}
		answers := unanswered(end.killed)
		stop := copies(end.args(uri)...)
		s.until("data moves", func() bool {
			io, err := s.alpha.DiskIO(t.Context(), "disk")
			return err == nil && end.moved(io) > end.moved(before)
		})
		end.killed.Kill()
		if end.control {
			err := end.killed.Do(func() error {
				c, err := nftables.New()
				if err != nil {
					return err
				}
				c.DelTable(&nftables.Table{Name: "ironwarp-guard", Family: nftables.TableFamilyINet})
				return c.Flush()
			})
			if err != nil {
				t.Fatal(err)
			}
			s.until("without the table the data is on the wire", func() bool { return found() > 0 })
			stop()
			break
		}
		s.until("the kernel has something for a socket that is gone", func() bool { return unanswered(end.killed) != answers })
		stop()
		if err := end.killed.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := found(); n != 0 {
			t.Errorf("%s: the disk's data is on the wire in clear, %d times", end.what, n)
		}
	}
	if counts, err := wire.Stop(); err != nil || counts.ESP == 0 {
		t.Errorf("the capture proves nothing: %v, %v", counts, err)
	}
}
