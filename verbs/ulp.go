package verbs

import (
	"fmt"
	"sync/atomic"
)

// ULP is a local consumer of the device, a principal with a quota (RFC 5042
// section 2.1.3). What one ULP has allocated, another can't use. Its methods allocate
// on its own account; limits, other ULPs and their streams belong to the Device, which
// a consumer does not get.
type ULP struct {
	dev   *Device
	name  string
	trust atomic.Uint32 // a TrustModel
	label atomic.Pointer[string]
	acct  account

	privileged bool

	closed bool // guarded by Device.mu
}

// ULPConfig describes a local consumer. The zero value is the safest.
type ULPConfig struct {
	Quota Quota // 0 fields: no limit but the device's
	// Trust is the trust model of the ULP's protection domains, and the most that
	// AllocPDAs permits.
	Trust TrustModel
	// Privileged is for the host's own ULPs (RFC 5042 section 2.1), which are also
	// trusted with what others need. Only their streams may stay idle when the
	// device runs short of streams, if their trust model permits it (section 6.4.2).
	Privileged bool
	// Label is the security label of its queue pairs that have none of their own; "": the default one.
	Label string
}

// NewULP registers a consumer, which gets a share of the device. It fails with
// ErrClosed after the device's Close, and if the quota is invalid.
func (d *Device) NewULP(name string, cfg ULPConfig) (*ULP, error) {
	limit, err := cfg.Quota.check(amounts{})
	if err != nil {
		return nil, fmt.Errorf("verbs: register ULP %s: %w", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	u := &ULP{dev: d, name: name, privileged: cfg.Privileged, acct: account{name: "ULP " + name, bare: name, limit: limit}}
	u.trust.Store(uint32(cfg.Trust))
	u.label.Store(&cfg.Label)
	d.prm.mu.Lock()
	d.prm.ulps.join(&u.acct)
	d.prm.mu.Unlock()
	return u, nil
}

// Trust is the ULP's trust model.
func (u *ULP) Trust() TrustModel { return TrustModel(u.trust.Load()) }

// SetTrust changes the trust model of a ULP, for protection domains allocated from
// then on.
func (d *Device) SetTrust(u *ULP, m TrustModel) { u.trust.Store(uint32(m)) }

// Label is the security label of the ULP's queue pairs that have none of their own.
func (u *ULP) Label() string { return *u.label.Load() }

// SetLabel changes a ULP's security label. Queue pairs that may not use their partition by it end at the next
// CheckPartitions.
func (d *Device) SetLabel(u *ULP, label string) { u.label.Store(&label) }

// Privileged reports whether the ULP is one of the host's own.
func (u *ULP) Privileged() bool { return u.privileged }

// Name is the name given to NewULP.
func (u *ULP) Name() string { return u.name }

// Usage is what the ULP has allocated.
func (u *ULP) Usage() Limits { return u.dev.prm.usageOf(&u.acct).Used }

// Guarantee makes the ULP's share of each resource at least this, in place of what
// Guarantee made it before: so much, including what it uses, is reserved for the ULP,
// whatever others ask for. It fails with a *QuotaError, and changes nothing, if that is
// more than the ULP may have or than others leave; with ErrClosed after Close.
func (u *ULP) Guarantee(l Limits) error {
	least, err := l.check(amounts{})
	if err != nil {
		return fmt.Errorf("verbs: guarantee ULP %s its share: %w", u.name, err)
	}
	m := &u.dev.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &u.acct
	if a.over {
		return ErrClosed
	}
	had := a.least
	for r := range resCount {
		if err := m.ulps.guarantee(a, r, least[r]); err != nil {
			for r := range r {
				_ = m.ulps.guarantee(a, r, had[r]) // there was room a moment ago
			}
			return err
		}
	}
	return nil
}

// Close returns the ULP's share. It fails with ErrInUse while the ULP has
// something allocated, and is idempotent.
func (u *ULP) Close() error {
	u.dev.mu.Lock()
	defer u.dev.mu.Unlock()
	if u.closed {
		return nil
	}
	m := &u.dev.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, n := range u.acct.used {
		if n > 0 {
			return fmt.Errorf("verbs: close ULP %s, which has %d %s: %w", u.name, n, resourceNames[r], ErrInUse)
		}
	}
	u.closed = true
	u.acct.over = true
	m.ulps.leave(&u.acct)
	return nil
}
