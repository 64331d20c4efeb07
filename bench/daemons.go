package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// startDaemons returns what starts two daemons that are loopback peers, with
// streams over a transport as the configuration names it. One exports image, the
// other attaches it, and serves it to fio on an NBD socket if way, the options of
// attach, has no other.
func startDaemons(transport string, way ...string) func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
	return func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
		dir = filepath.Join(dir, transport+strings.Join(way, ""))
		return runDaemons(ctx, b, dir, image, transport, way)
	}
}

func runDaemons(ctx context.Context, b *bench, dir, image, transport string, way []string) (*blockServer, error) {
	if _, err := os.Stat(b.ironwarp); err != nil {
		return nil, fmt.Errorf("%w; `make bench` builds it", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	udp, err := freeUDPPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if transport != "tcp" || len(way) > 0 { // a daemon locks what it exports
		image = filepath.Join(dir, "disk.img")
		if err := makeImage(image); err != nil {
			return nil, err
		}
	}
	var open closers
	fail := func(err error) (*blockServer, error) { return nil, errors.Join(err, open.Close()) }
	server := &daemon{name: "server", binary: b.ironwarp, dir: filepath.Join(dir, "server")}
	client := &daemon{name: "client", binary: b.ironwarp, dir: filepath.Join(dir, "client")}
	more := ""
	if transport == "sctp-udp" {
		more = fmt.Sprintf(", udp_port: %d", udp.Port())
	}
	const peer = "  - {name: %s, address: %s, local_address: %s, port: %d, protection: loopback, transport: %s%s}\n"
	for d, config := range map[*daemon]string{
		server: "listen: {port: %d, udp_port: %d, addresses: [127.0.0.1]}\npeers:\n" + fmt.Sprintf(peer, "client", "127.0.0.2", "127.0.0.1", port, transport, more) +
			fmt.Sprintf("exports:\n  - {name: disk, path: %q, allow: [client]}\n", image),
		client: "listen: {port: %d, udp_port: %d, addresses: [127.0.0.2]}\npeers:\n" + fmt.Sprintf(peer, "server", "127.0.0.1", "127.0.0.2", port, transport, more),
	} {
		p, err := d.start(ctx, fmt.Sprintf(config, port, udp.Port()))
		if err != nil {
			return fail(err)
		}
		open = append(open, p)
	}
	var at struct {
		URI   string `json:"nbd_uri"`
		Vhost string `json:"vhost_user_socket"`
	}
	out, err := client.cli(ctx, append([]string{"--json", "attach", "server/disk"}, way...)...)
	if err == nil {
		err = json.Unmarshal(out, &at)
	}
	if err != nil {
		return fail(fmt.Errorf("attach server/disk: %w\n%s%s", err, server.process.out.String(), client.process.out.String()))
	}
	return &blockServer{uri: at.URI, vhost: at.Vhost, pids: []int{server.process.pid(), client.process.pid()}, closer: open}, nil
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
	cmd := exec.CommandContext(ctx, d.binary, append([]string{"--socket", d.socket()}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return out, err
}
