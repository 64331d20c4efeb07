// Command demo shows IronWarp's main job on one machine: two hosts, alpha and
// beta, in network namespaces, each with its own strongSwan and its own
// `ironwarp daemon`. beta exports disks, alpha copies and writes them while SAs
// are deleted and strongSwan is killed, and the wire between them is captured
// throughout. `make demo` runs it, as root.
//
// It prints a table of claims and exits 1 if one of them does not hold.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

func main() {
	keep := flag.Bool("keep", false, "leave the hosts up and say how to look around")
	remove := flag.String("remove", "", "remove the hosts that an earlier run with --keep left up, by `name`")
	binary := flag.String("ironwarp", "bin/ironwarp", "the `program` to show")
	profile := flag.String("profile", "", "the IPsec `profile` of the link, such as rfc3723 (default: the program's)")
	carrier := flag.String("transport", "tcp", "the `transport` of the link: tcp, sctp, sctp-udp or auto")
	paths := flag.Int("paths", 1, "the `number` of wires between the hosts, by each of which a path of the session goes; each is cut once under I/O (1 to 4)")
	quick := flag.Bool("quick", false, "the same steps with less of everything, for machines that are slow or short of memory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *binary, options{profile: *profile, transport: cmp.Or(*carrier, "tcp"), paths: *paths, keep: *keep, quick: *quick}, *remove)
	interrupted := ctx.Err() != nil
	stop()
	var left *leftover
	switch {
	case interrupted && !errors.As(err, &left):
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything it had made is gone")
		os.Exit(130)
	case err != nil:
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// options are the choices of who runs it.
type options struct {
	profile   string // of IPsec; "" is the program's default
	transport string // as in a peer's file
	paths     int    // of the session, each by a wire of its own
	keep      bool   // leave the hosts up at the end
	quick     bool   // quickSize
}

func run(ctx context.Context, binary string, opt options, remove string) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes network namespaces, which takes root: run `sudo make demo`")
	}
	if remove != "" {
		if err := lab.Discard(ctx, "", remove); err != nil {
			return err
		}
		fmt.Printf("%s is gone\n", remove)
		return nil
	}
	if _, ok := wires[opt.transport]; !ok {
		return fmt.Errorf("-transport %q: there are tcp, sctp, sctp-udp and auto", opt.transport)
	}
	if opt.paths < 1 || opt.paths > maxPaths {
		return fmt.Errorf("-paths %d: there can be 1 to %d", opt.paths, maxPaths)
	}
	if err := lab.Missing(); err != nil {
		return err
	}
	if err := ksctp.Available(); opt.transport == "sctp" && err != nil {
		return err
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	size := fullSize
	if opt.quick {
		size = quickSize
	}
	s := newScene(binary, size, newPrinter(os.Stdout))
	s.options = opt
	return s.play(ctx)
}

// maxPaths is how many wires there can be.
const maxPaths = 4

// sizes says how much of everything a run makes.
type sizes struct {
	files     int   // in the tree that becomes the disk docs
	tree      int64 // bytes of all files
	image     int64 // bytes of the disk docs
	scratch   int64 // bytes of the scratch disk
	verified  int64 // bytes that one pass of fio writes and verifies
	deletions int   // of child SAs, alternately from both ends
}

var (
	fullSize  = sizes{files: 4000, tree: 160 << 20, image: 256 << 20, scratch: 256 << 20, verified: 96 << 20, deletions: 10}
	quickSize = sizes{files: 300, tree: 12 << 20, image: 24 << 20, scratch: 32 << 20, verified: 24 << 20, deletions: 4}
)

// limits of single steps. Userland ESP carries some 25 MB/s on two cores; ten
// times the expected time leaves room for a busy machine.
const (
	daemonTimeout = 30 * time.Second
	cliTimeout    = 60 * time.Second
	copyTimeout   = 4 * time.Minute
	healTimeout   = 60 * time.Second
	fioTimeout    = 5 * time.Minute
)
