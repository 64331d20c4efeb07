package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// ErrSaved means that a file of an agent's state is damaged.
var ErrSaved = errors.New("agent's state refused")

// Saved is what managers have set, so that a restart of the daemon changes nothing of it: without, it would
// open a port to an older key, and put a host back into a partition that it was taken out of. It holds beside
// what was configured then: what the administrator of the host configures anew wins.
type Saved struct {
	configured, now hiddenKeys
	drained         bool
	pkeysConfigured []uint16
	pkeys           []uint16
}

// Format does not write the keys, whatever the verb.
func (s *Saved) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "agent's state") }

// Saved returns the agent's state.
func (a *Agent) Saved() *Saved {
	return &Saved{configured: a.configured, now: hide(*a.guard.keys.fields()), drained: a.drained, pkeysConfigured: slices.Clone(a.c.PKeys), pkeys: slices.Clone(a.pkeys)}
}

// Undo takes back what a Set has changed, by the state before it: for a host that can't keep it over a restart, after which its manager
// would have another M_Key than the port.
func (a *Agent) Undo(before *Saved) {
	a.guard.set(*before.now.fields())
	a.drained, a.pkeys = before.drained, slices.Clone(before.pkeys)
}

func (a *Agent) restore(s *Saved) {
	if s == nil {
		return
	}
	if *s.configured.fields() == *a.configured.fields() {
		*a.guard.keys.fields() = *s.now.fields()
	}
	a.drained = s.drained
	// What is configured anew comes in; what managers took away stays away; what is no longer configured goes.
	table := slices.DeleteFunc(slices.Clone(s.pkeys), func(k uint16) bool {
		return base(k) == 0 || !slices.ContainsFunc(a.c.PKeys, func(allowed uint16) bool { return pkeyWithin(k, allowed) })
	})
	for _, k := range a.c.PKeys {
		if !slices.Contains(s.pkeysConfigured, k) && !slices.ContainsFunc(table, func(t uint16) bool { return base(t) == base(k) }) {
			table = append(table, k)
		}
	}
	a.pkeys = blocks(table)
	if n := len(blocks(a.c.PKeys)); len(a.pkeys) < n {
		a.pkeys = append(a.pkeys, make([]uint16, n-len(a.pkeys))...)
	}
}

// savedFile is the state as a file has it.
type savedFile struct {
	Configured      savedKeys
	Now             savedKeys
	Drained         bool
	PKeysConfigured []uint16
	PKeys           []uint16
}

type savedKeys struct {
	MKey        uint64
	Protect     uint8
	LeasePeriod uint16
}

func (k savedKeys) hide() hiddenKeys {
	return hide(KeyFields{MKey: mad.Key(k.MKey), Protect: k.Protect, LeasePeriod: k.LeasePeriod})
}

func savedOf(h hiddenKeys) savedKeys {
	k := h.fields()
	return savedKeys{MKey: uint64(k.MKey), Protect: k.Protect, LeasePeriod: k.LeasePeriod}
}

// Write writes the state to a file of mode 0600, in one step. It fails with the file system's error.
func (s *Saved) Write(path string) error {
	return wholefile.WriteJSON(path, savedFile{savedOf(s.configured), savedOf(s.now), s.drained, s.pkeysConfigured, s.pkeys})
}

// LoadSaved reads the state of a file, nil if there is none. It fails with [ErrSaved] if it is damaged, with
// auth.ErrSecretFile if others may read it, and with the file system's error.
func LoadSaved(path string) (*Saved, error) {
	f, err := auth.OpenPrivate(path, "agent's state")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSaved+1))
	if err != nil {
		return nil, fmt.Errorf("read the agent's state: %w", err)
	}
	var s savedFile
	if err := json.Unmarshal(text, &s); err != nil || len(text) > maxSaved || s.Now.Protect > 3 || len(s.PKeys) > maxPKeys || len(s.PKeysConfigured) > maxPKeys {
		// The error of package json may quote the file.
		return nil, fmt.Errorf("%w: %s is damaged; without the file, what is configured applies", ErrSaved, path)
	}
	return &Saved{configured: s.Configured.hide(), now: s.Now.hide(), drained: s.Drained, pkeysConfigured: s.PKeysConfigured, pkeys: s.PKeys}, nil
}
