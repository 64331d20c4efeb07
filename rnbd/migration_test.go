package rnbd

import (
	"errors"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

func newMigration(t *testing.T) *hosts {
	h := newHosts(t, false)
	if err := h.SetWriters("r", MigrationWriters); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hosts) migrate(t *testing.T, c *Client) (*Disk, error) {
	t.Helper()
	return c.Open(testContext(t), "r", OpenOptions{Migration: true})
}

// Two hosts have a disk while a machine moves, and one when either has closed it: what the
// other one sends then is refused, also after its restart.
func TestTwoWritersUntilOneCloses(t *testing.T) {
	for name, source := range map[string]bool{"the source closes": true, "the destination closes": false} {
		t.Run(name, func(t *testing.T) {
			h := newMigration(t)
			if _, err := h.b.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrInUse) {
				t.Fatalf("a second writer that does not migrate: %v", err)
			}
			d, err := h.migrate(t, h.b)
			if err != nil {
				t.Fatal(err)
			}
			write(t, h.disk, filled(1), 0)
			write(t, d, filled(2), 4096)
			c := connectAs(t, "c", overFrom(hostB), h.addr)
			for _, third := range []*Client{c, h.a} {
				if _, err := h.migrate(t, third); !errors.Is(err, ErrInUse) {
					t.Errorf("a third writer: %v", err)
				}
			}
			leaves, stays, left := h.disk, d, h.a
			if !source {
				leaves, stays, left = d, h.disk, h.b
			}
			claim := leaves.Claim()
			if err := leaves.Close(); err != nil {
				t.Fatal(err)
			}
			write(t, stays, filled(3), 0)
			if _, err := left.Open(testContext(t), "r", OpenOptions{Claim: claim, Migration: true}); !errors.Is(err, ErrPreempted) {
				t.Errorf("the one that has closed it comes back: %v", err)
			}
			if _, err := left.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrInUse) {
				t.Errorf("and anew: %v", err)
			}
			if d, err := h.migrate(t, left); err != nil {
				t.Errorf("and by a migration: %v", err)
			} else {
				write(t, d, filled(4), 0)
			}
		})
	}
}

// Both return to a server that was restarted, or after their paths were lost; a third host
// does not get between them.
func TestBothWritersOfAMigrationReturn(t *testing.T) {
	h := newMigration(t)
	d, err := h.migrate(t, h.b)
	if err != nil {
		t.Fatal(err)
	}
	h.writers = MigrationWriters
	h.restart(t, false)
	eventually(t, "both are back", func() bool {
		return h.a.Info().State == rtrs.Connected && h.b.Info().State == rtrs.Connected && len(h.Exports()[0].Openers) == 2
	})
	write(t, h.disk, filled(1), 0)
	write(t, d, filled(2), 4096)
	if _, err := h.migrate(t, connectAs(t, "c", overFrom(hostB), h.addr)); !errors.Is(err, ErrInUse) {
		t.Errorf("a third writer: %v", err)
	}
	if f, err := h.fence(testContext(t)); err != nil || len(f.Tokens) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if errno := do(t, h.disk, block.OpWrite, filled(9), 0, 0, 0); errno != syscall.EPERM {
		t.Errorf("the fenced source: %v", errno)
	}
	write(t, d, filled(3), 0)
}

// An export that does not permit it has one writer, and unknown modes are refused.
func TestMigrationTakesPermission(t *testing.T) {
	h := newHosts(t, false)
	if _, err := h.migrate(t, h.b); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	m := openMsg{Access: accessMigration, Name: "r"}
	var back openMsg
	if err := back.Parse(m.Append(nil)); err != nil || back != m {
		t.Errorf("%+v, %v", back, err)
	}
	m.Access++
	if err := back.Parse(m.Append(nil)); !errors.Is(err, ErrWire) {
		t.Error(err)
	}
}
