package attach

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/nbd"
)

const (
	// ulpClients of a ULP's disk: each costs a socket and 64 KiB. Programs that copy
	// with several connections have four or eight.
	ulpClients = 16
	// ulpInFlight requests of each.
	ulpInFlight = 64
	// ulpKept bytes of replies that a disk's clients don't read: what one of them has
	// under way.
	ulpKept = 16 << 20
)

// ulpDir is where the sockets of a ULP's disks stand. It is the daemon's, so that
// nobody puts something else in a socket's place.
func ulpDir(c *config.Config, ulp string) string { return filepath.Join(c.RuntimeDir, "ulp", ulp) }

// socketOf is the NBD socket of an attached disk.
func (a *Attacher) socketOf(k Disk) string {
	dir := a.cfg.Config().NBDDir()
	if k.ULP != "" {
		dir = ulpDir(a.cfg.Config(), k.ULP)
	}
	return socketPath(dir, k)
}

// socketPath is dir/PEER-EXPORT.sock, with the dashes of PEER doubled: an export's name
// begins with none, so the first odd row of them ends the peer. Where that is too long
// for a Unix socket, the name is cut and ends in a hash of the two behind a character
// that no name has. So no other disk has the same.
func socketPath(dir string, k Disk) string {
	const ending = ".sock"
	name := linkName(k)
	if n := local.MaxPath - len(filepath.Join(dir, ending)); len(name) > n {
		sum := sha256.Sum256([]byte(k.Peer + "/" + k.Export))
		hash := fmt.Sprintf("~%x", sum[:8])
		name = name[:max(0, n-len(hash))] + hash // local.Listen refuses what is too long all the same
	}
	return filepath.Join(dir, name+ending)
}

// logOf is the log of an attached disk.
func (a *Attacher) logOf(k Disk) *slog.Logger {
	log := a.log.With("disk", k.String())
	if k.ULP != "" {
		log = log.With("ulp", k.ULP)
	}
	return log
}

// nbdConfig bounds the clients of a ULP's disk, and keeps those of a socket for the next daemon.
func (a *Attacher) nbdConfig(at *Attachment) nbd.Config {
	cfg := nbd.Config{Logger: at.log, DrainTimeout: a.cfg.Drain}
	if a.cfg.Clients != nil && at.device == "" {
		cfg.HandOver = func(nc net.Conn, h nbd.Handed) { a.keepClient(at, nc, h) }
	}
	if at.Key.ULP != "" {
		cfg.MaxClients, cfg.MaxInFlight, cfg.LargeReads, cfg.MaxKept = ulpClients, ulpInFlight, at.owner.Large, ulpKept
	}
	return cfg
}

// listen listens at an attachment's socket. That of a ULP's disk belongs to the user who attached it, and
// the kernel is asked who connects to it as well.
func (a *Attacher) listen(ctx context.Context, at *Attachment) (net.Listener, error) {
	k := at.Key
	if k.ULP == "" {
		return local.Listen(ctx, at.socket)
	}
	dir := filepath.Dir(at.socket)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	// The umask may have made them narrower; all may pass, none may look.
	for _, dir := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return nil, err
		}
	}
	l, err := local.Listen(ctx, at.socket)
	if err != nil {
		return nil, err
	}
	cfg := at.owner.Declared()
	several := len(cfg.Users) != 1 || len(cfg.Groups) > 0
	if !several {
		err = os.Lchown(at.socket, int(at.uid), -1)
	}
	if several || errors.Is(err, fs.ErrPermission) {
		// It is for several users, or the daemon is not root: then only asking who connects keeps
		// others away. The socket stays the daemon's, which may not
		// be allowed to change the mode of others' files (CAP_FOWNER).
		err = os.Chmod(at.socket, 0o666)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := local.Restrict(l, func(u local.User) bool { return a.cfg.Users.MayOpen(u, k.ULP) })
	at.mu.Lock()
	at.users = s
	at.mu.Unlock()
	return s, nil
}

// keepClient keeps a client for the next daemon, if this one ends.
func (a *Attacher) keepClient(at *Attachment, nc net.Conn, h nbd.Handed) {
	if !a.closing.Load() || at.isDetached.Load() {
		return
	}
	if err := a.cfg.Clients.Keep(clientsOf(at.Key), nc, h); err != nil {
		at.log.Warn("an NBD client has to connect again: it cannot be kept for the next daemon", "error", err)
	}
}

// clientsOf is by what the clients of a disk are kept.
func clientsOf(k Disk) string { return k.ULP + "/" + k.String() }

// clientsBefore are the clients that the daemon before this one has kept, of users who still may have the disk.
func (a *Attacher) clientsBefore(at *Attachment, ln net.Listener) (all []nbd.Resumed) {
	for _, c := range a.cfg.Clients.Take(clientsOf(at.Key)) {
		if s, ok := ln.(*local.RestrictedListener); ok {
			if c.Conn, ok = s.Admit(c.Conn); !ok {
				continue
			}
		}
		all = append(all, c)
	}
	return all
}

// closeForbiddenClients ends the NBD clients of users who are not of the ULP any more.
func (at *Attachment) closeForbiddenClients() {
	at.mu.Lock()
	s := at.users
	at.mu.Unlock()
	if s != nil {
		s.CloseForbidden()
	}
}
