package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// Attached disks between two hosts in network namespaces, which two wires join.

// diskHosts are the hosts: server has the disk, client attaches it.
type diskHosts struct {
	*lab.Lab
	client, server *lab.Host
}

// openDiskHosts makes the hosts and starts the servers of the rows on them.
func openDiskHosts(config lab.Config, servers func(h *diskHosts) map[string]startServer) func(context.Context, *bench, []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		if err := lab.Missing(); err != nil {
			return nil, nil, leftOut(err.Error())
		}
		config.Hosts, config.Wires = []string{"client", "server"}, 2
		l, err := lab.New(ctx, config)
		if err != nil {
			return nil, nil, err
		}
		h := &diskHosts{l, l.Host("client"), l.Host("server")}
		cs, open, err := openBlock(servers(h))(ctx, b, names)
		if err != nil {
			return nil, nil, errors.Join(err, l.Close())
		}
		return cs, closers{l, open}, nil
	}
}

// attach starts a daemon on each host, which listen on a port of their own at the addresses
// on so many wires, and attaches the disk. What the peers are is up to settings, which
// follow the addresses in their declarations.
func (h *diskHosts) attach(ctx context.Context, b *bench, dir, image string, port, wires int, settings func(local, remote *lab.Host) string) (*blockServer, error) {
	start := func(local, remote *lab.Host) (*daemon, string) {
		at := []string{local.AddrOn(0).String(), local.AddrOn(1).String()}[:wires]
		d := &daemon{name: local.Name(), binary: b.ironwarp, dir: filepath.Join(dir, fmt.Sprint(local.Name(), port)), prefix: inside(local)}
		return d, fmt.Sprintf("listen: {port: %d, udp_port: %d, addresses: [%s]}\nipsec: {vici: %q}\npeers:\n  - {name: %s, address: %s, local_address: %s, port: %d%s}\n",
			port, port, strings.Join(at, ", "), "unix://"+local.ViciSocket(), remote.Name(), remote.Addr(), local.Addr(), port, settings(local, remote))
	}
	server, exporting := start(h.server, h.client)
	client, attaching := start(h.client, h.server)
	s, err := attach(ctx, server, exporting+exportOf(image), client, attaching)
	if err == nil {
		s.client, s.prefix = client, inside(h.client)
	}
	return s, err
}

// shared is start for servers that are one and the same.
func shared(start startServer) startServer {
	var s *blockServer
	return func(ctx context.Context, b *bench, dir, image string) (_ *blockServer, err error) {
		if s == nil {
			s, err = start(ctx, b, dir, image)
		}
		return s, err
	}
}

var espJobs = []string{"4 KiB random read, depth 32", "1 MiB sequential read, depth 4", "1 MiB sequential write, depth 4"}

// espDiskRows are an attached disk and nbdkit, both of them through ESP.
func espDiskRows() (rows []row) {
	for _, r := range fioRows() {
		for _, job := range espJobs {
			if r.name == "fio "+job+" / nbdkit" {
				r.name, r.aim = "fio "+job+", through ESP / nbdkit through ESP", 1
				r.ours.contender, r.rival = "ironwarp through ESP/"+job, []ref{{"nbdkit through ESP/" + job, r.ours.metric}}
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// espDisks are a disk between the hosts' first addresses, and nbdkit between their second
// ones. Both daemons have the other host as two peers, for whose links they make SAs; to
// the second one no stream is ever opened.
func (h *diskHosts) espDisks() map[string]startServer {
	start := shared(func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
		secret := filepath.Join(h.Dir(), "psk")
		if err := auth.GenerateSecret().Save(secret); err != nil {
			return nil, err
		}
		return h.attach(ctx, b, dir, image, espPort, 1, func(local, remote *lab.Host) string {
			return fmt.Sprintf(", psk_file: %q}\n  - {name: nbdkit, address: %s, local_address: %s, port: %d, psk_file: %q", secret, remote.AddrOn(1), local.AddrOn(1), espPort, secret)
		})
	})
	return map[string]startServer{
		"ironwarp through ESP": start,
		"nbdkit through ESP": func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
			disk, err := start(ctx, b, dir, image)
			if err != nil {
				return nil, err
			}
			// Until the SAs are there the guards drop what nbdkit's client sends.
			c := api.NewClient(disk.client.socket())
			defer c.Close()
			if err := waitFor(ctx, "ESP", 2*espSetUp, func() error {
				sas, err := c.SAs(ctx)
				if err == nil {
					err = sameESP(sas, h.server.Name(), "nbdkit")
				}
				return err
			}); err != nil {
				return nil, errors.Join(err, disk.closer.Close())
			}
			at := netip.AddrPortFrom(h.server.AddrOn(1), espPort)
			command := append(inside(h.server), "nbdkit", "--foreground", "--ipaddr="+at.Addr().String(), fmt.Sprintf("--port=%d", espPort), "file", image)
			s, err := startTCPServer(ctx, at, func() (net.Conn, error) { return h.client.Dial(ctx, at) }, command...)
			if err != nil {
				return nil, errors.Join(err, disk.closer.Close())
			}
			s.prefix, s.closer = disk.prefix, closers{disk.closer, s.closer}
			return s, nil
		},
	}
}

// sameESP fails unless the SAs of two peers do the same work for each packet.
func sameESP(sas []api.SA, peers ...string) error {
	var does []string
	for _, p := range peers {
		kinds := map[string]bool{}
		for _, sa := range sas {
			if sa.Peer == p {
				kinds[fmt.Sprint(sa.Encryption, sa.KeyBits, " ", sa.Integrity, " ", sa.Mode, ", in UDP: ", sa.Encap, ", ESN: ", sa.ESN)] = true
			}
		}
		does = append(does, fmt.Sprint(slices.Sorted(maps.Keys(kinds))))
	}
	if does[0] != does[1] || does[0] == "[]" {
		return fmt.Errorf("the SAs of peer %s are %s, those of %s %s", peers[0], does[0], peers[1], does[1])
	}
	return nil
}
