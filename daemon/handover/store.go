package handover

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/nbd"
)

// Prefix begins the names of the descriptors that are kept (LISTEN_FDNAMES).
const Prefix = "ironwarp-nbd-"

const version = 1

// state is what is kept beside a connection, in a file in memory.
type state struct {
	Version int        `json:"version"`
	Disk    string     `json:"disk"`
	Client  nbd.Handed `json:"client"`
}

// client is one that the daemon before this one has kept.
type client struct {
	name string
	conn *net.UnixConn
	state
}

// Store is a daemon's part of systemd's store. Its methods are safe for concurrent use. One that is nil keeps and has nothing.
type Store struct {
	log    *slog.Logger
	notify string // systemd's socket

	mu      sync.Mutex // guards the fields below it
	waiting []client   // not taken yet
	kept    int
}

// Load returns the store of a service that systemd has started, with the clients whose descriptors it has passed; nil if it was
// not systemd. What it does not understand it closes, and removes from the store.
func Load(log *slog.Logger, notify string, passed []*os.File) *Store {
	if notify == "" {
		for _, f := range passed {
			f.Close()
		}
		return nil
	}
	s := &Store{log: log, notify: notify}
	byName := map[string][]*os.File{}
	for _, f := range passed {
		byName[f.Name()] = append(byName[f.Name()], f)
	}
	for name, files := range byName {
		c, err := parse(name, files)
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			log.Warn("an NBD client of the daemon before this one is disconnected", "error", err)
			if err := s.remove(name); err != nil {
				log.Warn("what is kept of it stays with systemd", "error", err)
			}
			continue
		}
		s.waiting = append(s.waiting, c)
	}
	if len(s.waiting) > 0 {
		log.Info("NBD clients of the daemon before this one are here", "clients", len(s.waiting))
	}
	return s
}

// parse reads the two descriptors of a client.
func parse(name string, files []*os.File) (c client, err error) {
	c.name = name
	var data []byte
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return c, c.refused(os.NewSyscallError("fstat", err))
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFSOCK && c.conn == nil:
			nc, err := net.FileConn(f)
			if err != nil {
				return c, err
			}
			var ok bool
			if c.conn, ok = nc.(*net.UnixConn); !ok {
				nc.Close()
				return c, errors.New("its connection is no Unix socket")
			}
		case st.Mode&unix.S_IFMT == unix.S_IFREG && data == nil:
			if data, err = io.ReadAll(io.NewSectionReader(f, 0, maxState+1)); err != nil {
				return c, c.refused(err)
			}
		default:
			return c, c.refused(errors.New("something else was kept beside it"))
		}
	}
	switch {
	case c.conn == nil:
		return c, errors.New("its connection is gone")
	case len(data) == 0 || len(data) > maxState:
		return c, c.refused(fmt.Errorf("its state has %d bytes; 1 to %d are expected", len(data), maxState))
	}
	if err := json.Unmarshal(data, &c.state); err != nil {
		return c, c.refused(fmt.Errorf("its state: %w", err))
	}
	if c.Version != version {
		return c, c.refused(fmt.Errorf("its state has version %d; this daemon knows %d", c.Version, version))
	}
	sockio.PassRights(c.conn, false)
	return c, nil
}

// refused closes the client's connection, if it has one, and returns err.
func (c *client) refused(err error) error {
	if c.conn != nil {
		c.conn.Close()
	}
	return err
}

// Keep puts a client of a disk into the store, with a copy of its connection's descriptor. It fails where there is no room, and
// with the system's error.
func (s *Store) Keep(disk string, nc net.Conn, h nbd.Handed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept+len(s.waiting) >= maxClients { // those that wait are in systemd's store still, which says nothing when it is full
		return fmt.Errorf("%d clients are kept already", maxClients)
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return errors.New("the connection is no socket")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	data, err := json.Marshal(state{version, disk, h})
	if err != nil {
		return err
	}
	m, err := unix.MemfdCreate("ironwarp-nbd", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(m), "state")
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	sent := errors.New("the connection is closed")
	err = raw.Control(func(fd uintptr) {
		sent = s.tell("FDSTORE=1\nFDNAME="+Prefix+strings.ToLower(rand.Text()), int(fd), int(f.Fd()))
	})
	if err = errors.Join(err, sent); err == nil {
		s.kept++
	}
	return err
}

// Take returns the clients of a disk, which are the caller's then.
func (s *Store) Take(disk string) []nbd.Resumed {
	var out []nbd.Resumed
	for _, c := range s.takeIf(func(c client) bool { return c.Disk == disk }) {
		out = append(out, nbd.Resumed{Conn: c.conn, Handed: c.Client})
	}
	return out
}

// DropIf disconnects the clients of disks for which gone is true.
func (s *Store) DropIf(gone func(disk string) bool) {
	for _, c := range s.takeIf(func(c client) bool { return gone(c.Disk) }) {
		s.log.Info("an NBD client of the daemon before this one is disconnected: its disk is not attached any more", "disk", c.Disk)
		c.conn.Close()
	}
}

// takeIf returns the clients that are chosen, which neither this store nor systemd has any more.
func (s *Store) takeIf(chosen func(client) bool) (taken []client) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []client
	for _, c := range s.waiting {
		if !chosen(c) {
			left = append(left, c)
			continue
		}
		if err := s.remove(c.name); err != nil {
			// A later daemon would go on with what this client had sent long ago.
			s.log.Warn("an NBD client of the daemon before this one is disconnected", "error", err)
			c.conn.CloseRead()
			c.conn.CloseWrite()
			c.conn.Close()
			continue
		}
		taken = append(taken, c)
	}
	s.waiting = left
	return taken
}

// Close waits until systemd has all that was kept. Clients that nobody has taken stay in its store, for the next daemon.
func (s *Store) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.waiting {
		c.conn.Close()
	}
	s.waiting = nil
	if s.kept == 0 {
		return
	}
	s.log.Info("NBD clients are kept for the next daemon, if systemd starts one now", "clients", s.kept)
	if err := s.barrier(); err != nil {
		s.log.Warn("it is not known whether systemd has taken the NBD clients over", "error", err)
	}
}

// remove removes a client from systemd's store. It fails as tell does.
func (s *Store) remove(name string) error { return s.tell("FDSTOREREMOVE=1\nFDNAME=" + name) }
