package rnbd

import (
	"context"
	"fmt"
	"slices"
)

// A FenceResult is what a fence has done.
type FenceResult struct {
	// Generation is the disk's from now on: it has been raised if a token was void.
	Generation uint64
	// Tokens are void from now on.
	Tokens []Token
	// Drained is how many I/Os were under way and have ended, and Running how many have not.
	Drained, Running int
}

// Fence makes the tokens of an export's disk void that of names, in all sessions and for
// good: I/O under them is refused with EPERM, and so it is when their clients open the disk
// again, until they do so as new ones, without a claim. It waits for the I/O that they have
// under way; when it returns nil, nothing of it will ever reach the storage. Clients that
// only read, and other writers, go on.
//
// It fails with ErrNotFound; with ErrNotReady while the export's storage is not open; if the
// fence could not be stored, so that it holds only until the server ends; and with ctx's
// error, while I/O has not ended: a further call waits for that again. The FenceResult
// says in each case what was done.
func (s *Server) Fence(ctx context.Context, name string, of func(Token) bool) (f FenceResult, err error) {
	ending, f, err := s.revokeTokens(name, of)
	if err != nil {
		return f, err
	}
	if err := s.saveReservations(); err != nil {
		return f, fmt.Errorf("rnbd: the fence of export %q holds until the server ends, as it could not be stored: %w", name, err)
	}
	for _, d := range ending {
		select {
		case <-d.drained:
			f.Drained, f.Running = f.Drained+d.running, f.Running-d.running
		case <-ctx.Done():
			return f, fmt.Errorf("rnbd: %d I/Os of the fenced writers of export %q are still being carried out: %w", f.Running, name, ctx.Err())
		}
	}
	return f, nil
}

// fencedDevice is a fenced device, and how many I/Os it had under way.
type fencedDevice struct {
	*device
	running int
}

// revokeTokens makes tokens void, and returns the devices whose I/O has to end.
func (s *Server) revokeTokens(name string, of func(Token) bool) (ending []fencedDevice, f FenceResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if _, waits := s.waiting[name]; e == nil && waits {
		return nil, f, fmt.Errorf("%w: %q", ErrNotReady, name)
	}
	if e == nil {
		return nil, f, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	p := s.reservations[e.disk]
	for _, t := range p.Writers {
		if of(t) {
			f.Tokens = append(f.Tokens, t)
		}
	}
	for _, d := range e.writersOf(of) {
		t := d.token()
		if !d.fenced.Swap(true) && indexOf(f.Tokens, t.Attachment) < 0 {
			f.Tokens = append(f.Tokens, t) // of a client without an attachment to name
		}
		if d.isFenced() {
			running := int(d.close())
			ending = append(ending, fencedDevice{d, running})
			f.Running += running
		}
	}
	if len(f.Tokens) > 0 {
		// A token may have been claimed by somebody else since, whose it then seems to be.
		void := func(t Token) bool { return indexOf(f.Tokens, t.Attachment) >= 0 }
		p = Reservation{Disk: e.disk, Generation: p.Generation + 1, Writers: slices.DeleteFunc(slices.Clone(p.Writers), void), Fenced: slices.Clone(p.Fenced)}
		for _, t := range f.Tokens {
			t.Generation = p.Generation
			p.Fenced = append(p.Fenced, t)
		}
		p.Fenced = p.Fenced[max(0, len(p.Fenced)-maxFenced):]
		s.reservations[e.disk], s.unwritten = p, true
	}
	f.Generation = p.Generation
	return ending, f, nil
}

// writersOf returns the writing devices of tokens, those of an earlier fence that have not
// ended included. They have no grace period.
func (e *export) writersOf(of func(Token) bool) (devices []*device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inGrace = slices.DeleteFunc(e.inGrace, func(k *writer) bool { return of(k.token) })
	for _, d := range e.devices {
		if !d.readOnly && of(d.token()) {
			devices = append(devices, d)
		}
	}
	return devices
}
