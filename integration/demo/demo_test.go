package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

func TestSecureBlockLinkFromEndToEnd(t *testing.T) {
	fromEndToEnd(t, options{transport: "tcp", paths: 1})
}

func TestSecureBlockLinkByTwoPathsOverSCTPInUDP(t *testing.T) {
	fromEndToEnd(t, options{transport: "sctp-udp", paths: 2})
}

func TestSecureBlockLinkOverTheKernelsSCTP(t *testing.T) {
	lab.RequireKernelSCTP(t)
	fromEndToEnd(t, options{transport: "sctp", paths: 1})
}

func fromEndToEnd(t *testing.T, opt options) {
	lab.Require(t)
	for _, program := range []string{"mke2fs", "e2fsck", "nbdcopy", "fio"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (packages e2fsprogs, libnbd-bin, fio)", err)
		}
	}
	binary, err := node.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := newScene(binary, quickSize, newPrinter(os.Stdout))
	s.options = opt
	if err := s.play(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.claims {
		if !c.ok {
			t.Errorf("%s: %s", c.text, c.detail)
		}
	}
	if len(s.claims) < 10 {
		t.Errorf("only %d claims were examined", len(s.claims))
	}
	if _, err := os.Stat(s.lab.Dir()); !os.IsNotExist(err) {
		t.Errorf("the run left %s behind (%v)", s.lab.Dir(), err)
	}
}

func TestWireWithClearPacketsIsAFalseClaim(t *testing.T) {
	judge := func(carrier string, c lab.Counts) []claim {
		s := newScene("", quickSize, nil)
		s.transport = carrier
		s.judgeWire(c, 0)
		return s.claims
	}
	good := lab.Counts{Packets: 100_000, Bytes: 100 << 20, ESP: 99_000, IKE: 10}
	bad := map[string]func(*lab.Counts){
		"clear packet of TCP":         func(c *lab.Counts) { c.ClearTCP = map[uint16]int{7471: 1} },
		"clear packet of SCTP":        func(c *lab.Counts) { c.ClearSCTP = map[uint16]int{7471: 1} },
		"clear packet of SCTP in UDP": func(c *lab.Counts) { c.ClearUDP = map[uint16]int{9899: 1} },
		"clear fragment of TCP":       func(c *lab.Counts) { c.Fragments = 1 },
		"clear fragment of UDP":       func(c *lab.Counts) { c.FragmentsUDP = 1 },
		"missed packet":               func(c *lab.Counts) { c.Dropped = 1 },
		"other packet":                func(c *lab.Counts) { c.Kinds = map[lab.Kind]int{{What: "udp port 53"}: 1} },
		"quote of the link": func(c *lab.Counts) {
			c.Kinds = map[lab.Kind]int{{What: "ICMP type 3 code 3", Quotes: "udp port 9899"}: 1}
		},
		"canary in ARP":    func(c *lab.Counts) { c.Canary = map[lab.Kind]int{{What: "ARP"}: 1} },
		"canary in ESP":    func(c *lab.Counts) { c.Canary = map[lab.Kind]int{{What: "ESP"}: 1} },
		"no ESP":           func(c *lab.Counts) { c.ESP = 0 },
		"too little of it": func(c *lab.Counts) { c.Bytes = 1 << 20 },
	}
	for carrier := range wires {
		for _, c := range judge(carrier, good) {
			if !c.ok {
				t.Errorf("%s: %s: %s", carrier, c.text, c.detail)
			}
		}
		for name, spoil := range bad {
			t.Run(carrier+" "+name, func(t *testing.T) {
				c := good
				spoil(&c)
				for _, cl := range judge(carrier, c) {
					if !cl.ok {
						return
					}
				}
				t.Error("every claim held")
			})
		}
	}
}

func TestSummaryCountsWhatDoesNotHold(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := newPrinter(f).summary([]claim{{true, "good", "x"}, {false, "bad", "because"}}); n != 1 {
		t.Errorf("%d claims failed, want 1", n)
	}
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "FAIL  bad   because") || !strings.Contains(string(text), "ok    good  x") {
		t.Errorf("summary:\n%s", text)
	}
}

func TestDiskIsTheSameInEveryRunAndClean(t *testing.T) {
	for _, program := range []string{"mke2fs", "e2fsck"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (package e2fsprogs)", err)
		}
	}
	size := sizes{files: 200, tree: 1 << 20, image: 8 << 20, scratch: 1 << 20}
	canary := lab.NewCanary()
	var trees []string
	for range 2 {
		dir := t.TempDir()
		tree := filepath.Join(dir, "again")
		if err := makeTree(t.Context(), tree, size.files, size.tree, canary); err != nil {
			t.Fatal(err)
		}
		sum, err := sha256File(filepath.Join(tree, "part-01", "document-0199-"+string(canary)))
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, sum)
		d, err := makeDisk(t.Context(), dir, size, canary)
		if err != nil {
			t.Fatal(err)
		}
		if err := fsck(t.Context(), d.docs); err != nil {
			t.Error(err)
		}
		f, err := os.OpenFile(d.docs, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 4096), 1024); err != nil { // the superblock
			t.Fatal(err)
		}
		f.Close()
		if err := fsck(t.Context(), d.docs); err == nil {
			t.Error("e2fsck was content with a disk without a superblock")
		}
	}
	if trees[0] != trees[1] {
		t.Error("two runs made different files")
	}
}
