package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// imageSize is the size in bytes of the file that all block servers serve.
// It fits the page cache of every machine that can build the project.
const imageSize = 512 << 20

// startServer starts a block server with a file; dir is for whatever else it needs.
type startServer = func(ctx context.Context, b *bench, dir, image string) (*blockServer, error)

// cutContender is a server and the name of its job, in the name of a contender.
func cutContender(name string) (server, job string) {
	slash := strings.LastIndexByte(name, '/')
	return name[:slash], name[slash+1:]
}

// openBlock starts the servers of the fio rows, all on one file or copies of it.
func openBlock(servers map[string]startServer) func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		var open closers
		fail := func(err error) ([]contender, io.Closer, error) {
			return nil, nil, errors.Join(err, open.Close())
		}
		if _, err := exec.LookPath("fio"); err != nil {
			return fail(fmt.Errorf("%w; as root, make bench installs it", err))
		}
		dir, err := os.MkdirTemp("", "ironwarp-bench-")
		if err != nil {
			return fail(err)
		}
		open = append(open, closeFunc(func() error { return os.RemoveAll(dir) }))
		image := filepath.Join(dir, "disk.img")
		if err := makeImage(image); err != nil {
			return fail(err)
		}
		running := map[string]*blockServer{}
		var contenders []contender
		for _, name := range names {
			kind, job := cutContender(name)
			if running[kind] == nil {
				s, err := servers[kind](ctx, b, dir, image)
				if err != nil {
					return fail(fmt.Errorf("%s: %w", kind, err))
				}
				running[kind] = s
				open = append(open, s.closer)
			}
			s := running[kind]
			for _, j := range fioJobs {
				if j.name == job {
					contenders = append(contenders, contender{name, func(ctx context.Context) (metrics, error) { return j.run(ctx, s) }})
				}
			}
		}
		// All servers run one job before any runs the next.
		return byJob(contenders), open, nil
	}
}

func byJob(cs []contender) []contender {
	var sorted []contender
	for _, j := range fioJobs {
		for _, c := range cs {
			if strings.HasSuffix(c.name, "/"+j.name) {
				sorted = append(sorted, c)
			}
		}
	}
	return sorted
}

// makeImage writes random data, so that no server gains from holes or zeroes.
func makeImage(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{}), imageSize); err != nil {
		return err
	}
	return f.Close()
}

// blockServer is a running server: what fio or a front end connects to, and the processes
// whose CPU time counts.
type blockServer struct {
	uri     string
	vhost   string // a vhost-user socket in its place
	device  string // or a block device
	iscsi   portal // or a LUN
	pids    []int
	prefix  []string // words before fio's command line, if any
	client  *daemon  // that has the disk attached, between hosts
	seconds int      // that a job takes; 0: fioSeconds
	// lose, if not nil, has the session lose a path while a job runs, and returns after how
	// long a silence it was given up.
	lose func(ctx context.Context) (known time.Duration, err error)
	// own, if not nil, is a client of this program, which does the jobs in fio's place.
	own    func(ctx context.Context, j fioJob, s *blockServer) (metrics, error)
	closer io.Closer
}

// blockServers are those on loopback.
var blockServers = map[string]startServer{
	"ironwarp":               pair{}.start,
	"ironwarp over sctp-udp": pair{transport: "sctp-udp"}.start,
	"ironwarp, open chunks":  pair{open: true}.start,
	"vhost-user":             pair{way: []string{"--vhost-user"}}.start,
	"qemu-nbd":               startQemuNBD,
	"nbdkit":                 startNBDKit,
	"two nbdkits":            startTwoNBDKits,
}

// blockServersAnd are blockServers and, unless old is "", that program's daemons.
func blockServersAnd(old string) map[string]startServer {
	all := maps.Clone(blockServers)
	if old != "" {
		all["one path, "+old] = pair{binary: old}.start
	}
	return all
}

func startQemuNBD(ctx context.Context, _ *bench, _, image string) (*blockServer, error) {
	// Locking is off because other servers have the same file open.
	return startOnLoopback(ctx, "disk", func(port string) []string {
		return []string{"qemu-nbd", "--persistent", "--shared=8", "--export-name=disk", "--bind=127.0.0.1", "--port=" + port,
			"--image-opts", "driver=raw,file.driver=file,file.locking=off,file.filename=" + image}
	})
}

func startNBDKit(ctx context.Context, _ *bench, _, image string) (*blockServer, error) {
	return startOnLoopback(ctx, "", func(port string) []string {
		return []string{"nbdkit", "--foreground", "--ipaddr=127.0.0.1", "--port=" + port, "file", image}
	})
}

// startTwoNBDKits has one nbdkit as the client of another, as a host would that has a remote
// disk on a Unix socket.
func startTwoNBDKits(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
	far, err := startNBDKit(ctx, b, dir, image)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "nbdkit.sock")
	p, err := startProcess("nbdkit", "--foreground", "--unix="+socket, "nbd", "uri="+far.uri)
	if err == nil {
		far.closer = closers{far.closer, p}
		err = p.ready(ctx, func() error { _, err := os.Stat(socket); return err })
	}
	if err != nil {
		return nil, errors.Join(err, far.closer.Close())
	}
	far.uri, far.pids = "nbd+unix:///?socket="+socket, append(far.pids, p.pid())
	return far, nil
}

// startOnLoopback starts an NBD server, of which command is the command line for a port.
func startOnLoopback(ctx context.Context, export string, command func(port string) []string) (*blockServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
	s, err := startTCPServer(ctx, at, func() (net.Conn, error) { return net.Dial("tcp", at.String()) }, command(strconv.Itoa(port))...)
	if err == nil {
		s.uri += export
	}
	return s, err
}

// startTCPServer starts an NBD server and waits until it can be dialed.
func startTCPServer(ctx context.Context, at netip.AddrPort, dial func() (net.Conn, error), command ...string) (*blockServer, error) {
	p, err := startProcess(command[0], command[1:]...)
	if err != nil {
		return nil, fmt.Errorf("%w; as root, make bench installs it", err)
	}
	if err := p.ready(ctx, func() error {
		c, err := dial()
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		p.Close()
		return nil, err
	}
	return &blockServer{uri: "nbd://" + at.String() + "/", pids: []int{p.pid()}, closer: p}, nil
}

// freePort returns a TCP port that nobody uses at the moment.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
