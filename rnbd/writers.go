package rnbd

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Who may have an export open for writing now; reservation.go has who may come back.

// Writers is how many clients may have an export open for writing.
type Writers uint8

// How many there may be.
const (
	OneWriter Writers = iota
	// MigrationWriters lets a second one in, in another session, that asks for it
	// (OpenOptions.Migration), until one of them closes the disk: a virtual machine that
	// moves is open at both hosts, of which one writes.
	MigrationWriters
	SharedWriters // any number, which must coordinate
)

func (e *export) writers() Writers {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.Writers
}

// writer is a client that has an export open for writing.
type writer struct {
	token Token
	since time.Time
	until time.Time // if its session was lost: when its grace period is over
}

func (w *writer) String() string {
	if w.until.IsZero() {
		return fmt.Sprintf("%s (since %s)", w.token.Peer, w.since.UTC().Format(time.DateTime+" UTC"))
	}
	return fmt.Sprintf("%s (its session was lost; its place is kept until %s)", w.token.Peer, w.until.UTC().Format(time.TimeOnly+" UTC"))
}

// startGrace keeps other writers out for a while after a writer's session was lost, so that
// it can return.
func (e *export) startGrace(d *device, until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.readOnly || d.closed.Load() || e.cfg.Writers == SharedWriters {
		return
	}
	e.inGrace = append(e.inGrace, &writer{d.token(), d.since, until})
}

// attach adds a device. A writing device must be the only one, unless the export has
// more writers: otherwise attach returns the writer that is there, or may come back. A
// device takes over from one of the same attachment left by a lost session.
func (e *export) attach(d *device) (other *writer, err error) {
	for {
		old, other := e.attachUnlessOtherWriter(d)
		if old == nil {
			return other, nil
		}
		if n := old.close(); mustWaitFor(n) {
			return nil, fmt.Errorf("%d I/Os of the session before are being carried out: %w", n, syscall.EBUSY)
		}
		old.remove()
	}
}

func (e *export) attachUnlessOtherWriter(d *device) (old *device, other *writer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d.sectors = e.sectors.Load() // it may have been made smaller meanwhile, as nobody had it open
	if d.readOnly {
		e.devices = append(e.devices, d)
		return nil, nil
	}
	var others []*writer
	for _, o := range e.devices {
		switch {
		case o.readOnly:
		case o.takenOverBy(d):
			return o, nil
		default:
			others = append(others, &writer{token: o.token(), since: o.since})
		}
	}
	now := time.Now()
	away := slices.DeleteFunc(slices.Clone(e.inGrace), func(k *writer) bool { return k.token.Peer == d.sess.info.Peer || !now.Before(k.until) })
	others = append(others, away...)
	if len(others) > e.mostOtherWritersLocked(d) {
		return nil, others[0]
	}
	e.inGrace, e.devices = away, append(e.devices, d)
	return nil, nil
}

// hasWriterOfLocked reports whether a session has the export open for writing.
func (e *export) hasWriterOfLocked(s *session) bool {
	return slices.ContainsFunc(e.devices, func(o *device) bool { return !o.readOnly && o.sess == s })
}

// takenOverBy reports whether d is the same attachment in a later session. A device of an
// earlier session does not take over from its successor.
func (o *device) takenOverBy(d *device) bool {
	return o.attachment == d.attachment && !d.attachment.IsZero() && o.sess.info.Peer == d.sess.info.Peer && o.sess.number <= d.sess.number
}

// onlyWriterLocked returns the only device open for writing, nil if there are none or
// several.
func (e *export) onlyWriterLocked() (only *device) {
	for _, d := range e.devices {
		switch {
		case d.readOnly:
		case only != nil:
			return nil
		default:
			only = d
		}
	}
	return only
}
