package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// wire is a port that the link's packets would have on the wire in clear.
type wire struct {
	proto transport.Protocol
	port  uint16
	name  string
}

var (
	wireTCP  = wire{transport.ProtoTCP, config.DefaultPort, "TCP port 7471"}
	wireSCTP = wire{transport.ProtoSCTP, config.DefaultPort, "SCTP port 7471"}
	wireUDP  = wire{transport.ProtoUDP, config.DefaultUDPPort, "UDP port 9899"}
	anyWire  = []wire{wireTCP, wireSCTP, wireUDP}

	// wires are those of each transport, by its name.
	wires = map[string][]wire{"tcp": {wireTCP}, "sctp": {wireSCTP}, "sctp-udp": {wireUDP}, "auto": anyWire}
)

// clearOn is how many clear packets of some ports a capture has.
func clearOn(c lab.Counts, of []wire) (n int) {
	for _, w := range of {
		n += c.ClearOf(w.proto, w.port)
	}
	return n
}

// wireNames names the ports of the scene's transport.
func (s *scene) wireNames() string {
	var names []string
	for _, w := range wires[s.transport] {
		names = append(names, w.name)
	}
	return strings.Join(names, ", ")
}

// scene is one run: the hosts, and what has been claimed about them.
type scene struct {
	options
	binary string
	size   sizes
	out    *printer
	kept   bool // the hosts are left up

	lab         *lab.Lab
	canary      lab.Canary
	alpha, beta *node.Node
	image       *diskImage
	docs        api.Attachment // on alpha
	scratch     api.Attachment
	claims      []claim
}

// claim is a sentence that the run has shown to be true or false.
type claim struct {
	ok     bool
	text   string
	detail string
}

func newScene(binary string, size sizes, out *printer) *scene {
	return &scene{options: options{transport: "tcp", paths: 1}, binary: binary, size: size, out: out}
}

func (s *scene) claim(ok bool, text, detail string, args ...any) {
	s.claims = append(s.claims, claim{ok, text, fmt.Sprintf(detail, args...)})
}

// play runs the whole demonstration. Whatever happens, nothing is left behind
// unless keep was asked for and the run got to its end.
func (s *scene) play(ctx context.Context) (err error) {
	defer func() {
		if s.lab != nil && !s.kept {
			if cerr := s.close(); cerr != nil {
				err = errors.Join(err, &leftover{cerr})
			}
		}
	}()
	if err := s.setUp(ctx); err != nil {
		return err
	}
	capture, err := s.alpha.CaptureAll(ctx, lab.CaptureOptions{Unjudged: "judgeWire does it, by claims"})
	if err != nil {
		return err
	}
	if err := s.link(ctx); err != nil {
		return s.withLogs(err)
	}
	if err := s.copyOut(ctx); err != nil {
		return s.withLogs(err)
	}
	if err := s.storm(ctx); err != nil {
		return s.withLogs(err)
	}
	if err := s.cutWires(ctx); err != nil {
		return s.withLogs(err)
	}
	if err := s.runPrograms(ctx); err != nil {
		return s.withLogs(err)
	}
	counts, err := capture.Stop()
	if err != nil {
		return err
	}
	stopped, err := s.guardStopped()
	if err != nil {
		return err
	}
	s.judgeWire(counts, stopped)
	if err := s.control(ctx); err != nil {
		return s.withLogs(err)
	}
	failed := s.out.summary(s.claims)
	if s.keep {
		if err := s.lab.Keep(); err != nil {
			return err
		}
		s.kept = true
		if err := s.lab.Close(); err != nil {
			return err
		}
		if err := s.lookAround(); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d claims do not hold", failed, len(s.claims))
	}
	return nil
}

// setUp makes the hosts, beta's disks, and starts the daemons.
func (s *scene) setUp(ctx context.Context) (err error) {
	s.out.step("hosts")
	if err := enoughSpace(os.TempDir(), 2*s.size.image+s.size.scratch+s.size.tree+64<<20); err != nil {
		return err
	}
	if s.lab, err = lab.New(ctx, lab.Config{Wires: s.paths}); err != nil {
		return err
	}
	s.canary = s.lab.Canary()
	s.alpha, s.beta = node.New(s.lab.Host("alpha"), s.binary), node.New(s.lab.Host("beta"), s.binary)
	plane := "ESP by the kernel"
	if s.lab.DataPlane() == esp.Userland {
		plane = "ESP by strongSwan's userland plugin, as this kernel has none"
	}
	s.out.done("alpha %s and beta %s, strongSwan on each; %s", s.alpha.Addr(), s.beta.Addr(), plane)

	s.out.step("disks")
	if s.image, err = makeDisk(ctx, s.beta.Dir(), s.size, s.canary); err != nil {
		return err
	}
	s.out.done("docs: ext4 with %d files, %s; scratch: empty, %s", s.size.files, mib(s.size.image), mib(s.size.scratch))

	s.out.step("daemons")
	for _, n := range []*node.Node{s.alpha, s.beta} {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	s.out.done("ironwarp daemon on each host")
	return nil
}

// leftover says that not everything could be cleared away.
type leftover struct{ err error }

func (l *leftover) Error() string { return "clear away: " + l.err.Error() }
func (l *leftover) Unwrap() error { return l.err }

// close stops the daemons in good order, then removes the hosts.
func (s *scene) close() error {
	var errs []error
	for _, n := range []*node.Node{s.alpha, s.beta} {
		if n != nil {
			errs = append(errs, n.Stop())
		}
	}
	return errors.Join(append(errs, s.lab.Close())...)
}

// withLogs adds to a failure what the daemons last said.
func (s *scene) withLogs(err error) error {
	for _, n := range []*node.Node{s.alpha, s.beta} {
		err = fmt.Errorf("%w\n--- the end of %s's daemon log:\n%s", err, n.Name(), n.LogTail(20_000))
	}
	return err
}

// guardStopped is how many clear packets the guards have kept from leaving.
func (s *scene) guardStopped() (n uint64, err error) {
	for _, h := range s.lab.Hosts() {
		stats, err := guard.XfrmStats(h.NetNS())
		if err != nil {
			return 0, err
		}
		n += stats["XfrmOutPolBlock"]
	}
	return n, nil
}

func (s *scene) judgeWire(c lab.Counts, stopped uint64) {
	// Whatever the transport is, none of the others has a place in clear either.
	clear, unknown := clearOn(c, anyWire), c.Unknown()
	for i := range programPorts.Size {
		clear += c.Clear(programPorts.First + i)
	}
	s.claim(clear == 0 && c.Dropped == 0, fmt.Sprintf("no clear packet of %s, or of the programs, on the wire", s.wireNames()),
		"%d clear, %d missed; the guard stopped %d", clear, c.Dropped, stopped)
	s.claim(unknown == "", "nothing else is on it that has no business there", "%s",
		cmp.Or(unknown, fmt.Sprintf("%d ESP, %d IKE; of other kinds: %s", c.ESP, c.IKE, cmp.Or(c.Others(), "none"))))
	s.claim(len(c.Canary) == 0, "no packet shows what the disks have in it", "%s",
		cmp.Or(c.Leaked(), fmt.Sprintf("%q, of which files, names and writes are full, stands in %d of %d packets", s.canary, c.Readable(), c.Packets)))
	carried := s.size.image + s.size.verified
	s.claim(c.ESP > 0 && int64(c.Bytes) > carried, "the data did cross that wire", "%s captured, %s copied and written at the least", mib(int64(c.Bytes)), mib(carried))
}

// lookAround writes a script per host that runs a command in it, and says what
// to try.
func (s *scene) lookAround() error {
	s.out.line("")
	s.out.line("The hosts stay up. To look around:")
	for _, n := range []*node.Node{s.alpha, s.beta} {
		script := filepath.Join(s.lab.Dir(), n.Name()+".sh")
		text := fmt.Sprintf("#!/bin/sh\n# Runs a command on the host %s.\nPATH=%q:$PATH exec ip netns exec %q sh -c 'mount --bind \"$1\" /run && shift && exec \"$@\"' sh %q \"${@:-sh}\"\n",
			n.Name(), filepath.Dir(s.binary), n.Namespace(), n.RunDir())
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			return err
		}
		s.out.line("  %s ironwarp status", script)
	}
	alpha := filepath.Join(s.lab.Dir(), "alpha.sh")
	s.out.line("  %s ironwarp ping beta", alpha)
	s.out.line("  %s nbdinfo '%s'", alpha, s.docs.URI)
	s.out.line("  %s tcpdump -ni %s", alpha, s.alpha.Dev())
	s.out.line("To remove them:")
	s.out.line("  make demo ARGS='--remove %s'", s.lab.Name())
	return nil
}

func enoughSpace(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look for space in %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need {
		return fmt.Errorf("the disks need %s in %s, and %s are free: set TMPDIR to a larger place", mib(need), dir, mib(free))
	}
	return nil
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<19)>>20) }
