package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// pair is two daemons that are loopback peers. One exports a disk, the other attaches it.
type pair struct {
	transport string   // of the streams, as the configuration names it; "": the default, TCP
	way       []string // options of attach; none: it serves an NBD socket
	// open leaves the memory of requests open to the client (always_invalidate: false).
	open   bool
	binary string // "": this version's
}

// start starts both with a copy of image, which a daemon locks.
func (p pair) start(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	udp, err := freeUDPPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return nil, err
	}
	if dir, err = os.MkdirTemp(dir, ""); err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.img")
	if err := makeImage(disk); err != nil {
		return nil, err
	}
	settings, trust := "", ""
	if p.transport != "" {
		settings = fmt.Sprintf(", transport: %s, udp_port: %d", p.transport, udp.Port())
	}
	if p.open {
		settings, trust = settings+", always_invalidate: false", "trust: NS-RT\n"
	}
	config := func(local, remote, name string) string {
		return fmt.Sprintf("listen: {port: %d, udp_port: %d, addresses: [%s]}\npeers:\n  - {name: %s, address: %s, local_address: %s, port: %d, protection: loopback%s}\n",
			port, udp.Port(), local, name, remote, local, port, settings) + trust
	}
	binary := cmp.Or(p.binary, b.ironwarp)
	const here, there = "127.0.0.1", "127.0.0.2"
	return attach(ctx, &daemon{name: "server", binary: binary, dir: filepath.Join(dir, "server")}, config(here, there, "client")+exportOf(disk),
		&daemon{name: "client", binary: binary, dir: filepath.Join(dir, "client")}, config(there, here, "server"), p.way...)
}

// exportOf declares an export disk of a file to the peer client.
func exportOf(image string) string {
	return fmt.Sprintf("exports:\n  - {name: disk, path: %q, allow: [client]}\n", image)
}

// attach starts two daemons, each with its configuration, and attaches the disk that
// server exports at client, whose peer server is.
func attach(ctx context.Context, server *daemon, exporting string, client *daemon, attaching string, way ...string) (*blockServer, error) {
	if _, err := os.Stat(server.binary); err != nil {
		return nil, fmt.Errorf("%w; `make bench` builds it", err)
	}
	var open closers
	fail := func(err error) (*blockServer, error) { return nil, errors.Join(err, open.Close()) }
	for d, config := range map[*daemon]string{server: exporting, client: attaching} {
		p, err := d.start(ctx, config)
		if err != nil {
			return fail(err)
		}
		open = append(open, p)
	}
	var at struct {
		URI    string `json:"nbd_uri"`
		Vhost  string `json:"vhost_user_socket"`
		Device string `json:"device"`
	}
	out, err := client.cli(ctx, append([]string{"--json", "attach", "server/disk"}, way...)...)
	if err == nil {
		err = json.Unmarshal(out, &at)
	}
	if err != nil {
		return fail(fmt.Errorf("attach server/disk: %w\n%s%s", err, server.process.out.String(), client.process.out.String()))
	}
	return &blockServer{uri: at.URI, vhost: at.Vhost, device: at.Device, pids: []int{server.process.pid(), client.process.pid()}, closer: open}, nil
}

// daemon is one `ironwarp daemon` with all its files in a directory.
type daemon struct {
	name, binary, dir string
	prefix            []string // words before its command line, if any
	process           *process
}

func (d *daemon) run() string { return filepath.Join(d.dir, "run") }

func (d *daemon) socket() string { return filepath.Join(d.run(), "ironwarp.sock") }

func (d *daemon) start(ctx context.Context, config string) (*process, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	config += "state_dir: state\nruntime_dir: " + d.run() + "\n"
	if err := os.WriteFile(d.config(), []byte(config), 0o600); err != nil {
		return nil, err
	}
	return d.again(ctx)
}

func (d *daemon) config() string { return filepath.Join(d.dir, "ironwarp.yaml") }

// again starts it with the configuration that it has.
func (d *daemon) again(ctx context.Context) (*process, error) {
	command := slices.Concat(d.prefix, []string{d.binary, "daemon", "--config", d.config()})
	p, err := startProcess(command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	d.process = p
	if err := p.ready(ctx, func() error {
		_, err := d.cli(ctx, "status")
		return err
	}); err != nil {
		p.Close()
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	return p, nil
}

// cli runs the command line against the daemon.
func (d *daemon) cli(ctx context.Context, args ...string) ([]byte, error) {
	return output(exec.CommandContext(ctx, d.binary, append([]string{"--socket", d.socket()}, args...)...))
}

// output is what a command prints; what it says of a failure is in the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return out, err
}
