package agent

import (
	"fmt"
	"io"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// KeyFields are the components of PortInfo that protect a port (IBTA 14.2.4). They print without the key.
type KeyFields struct {
	MKey        mad.Key // 0: none, all keys match
	Protect     uint8   // M_KeyProtectBits, 0 to 3
	LeasePeriod uint16  // seconds; 0: the lease does not end
}

// Configured returns the key fields that the configuration gives to a port.
func Configured(c *conf.Config, port mad.GUID) KeyFields {
	return KeyFields{MKey: c.PortKey(port), Protect: c.MKeyProtection, LeasePeriod: c.MKeyLeasePeriod}
}

// Format does not write the key, whatever the verb.
func (k KeyFields) Format(f fmt.State, _ rune) {
	key := "no M_Key"
	if k.MKey != 0 {
		key = "an M_Key"
	}
	_, _ = io.WriteString(f, fmt.Sprintf("%s, protection %d, lease period %d s", key, k.Protect, k.LeasePeriod))
}

// hiddenKeys are key fields in an unexported field, where package fmt passes over Format and writes what it
// finds, but not behind two pointers.
type hiddenKeys struct{ p **KeyFields }

func hide(k KeyFields) hiddenKeys {
	p := &k
	return hiddenKeys{&p}
}

func (h hiddenKeys) fields() *KeyFields { return *h.p }

// lease is how far a port's lease of its M_Key has run (IBTA 14.2.4.2).
type lease uint8

const (
	leaseHeld lease = iota
	leaseRunning
	leaseEnded
)

// keyGuard decides by the M_Key whether a request is valid (IBTA 14.2.4). Its state is the lease:
//
//	      violation, where there is a lease period
//	held ───────────────────────────────────────────▶ running
//	 ▲ ▲                                                │ │
//	 │ └──────────── valid request ─────────────────────┘ │ the period is over:
//	 │                                                    │ M_KeyProtectBits become 0, the key stays
//	 └──────────── Set of the key fields ──────── ended ◀─┘
//	                                               │ ▲
//	                     violation: running again ─┘ └─ as above
//
// A valid request is a Get, Set or TrapRepress whose M_Key matches; a violation is a Set or TrapRepress whose
// M_Key does not, or such a Get from level 2 on. Violations are counted, and the count saturates.
type keyGuard struct {
	keys       hiddenKeys
	violations uint16
	lease      lease
	until      time.Time // of leaseRunning
}

// verdict is what the M_Key says of a request.
type verdict uint8

const (
	keyMatches   verdict = iota
	keyDiffers           // the request is valid all the same
	keyViolation         // it is not
)

// judge decides about a request with one of the methods Get, Set and TrapRepress.
func (g *keyGuard) judge(now time.Time, method mad.Method, key mad.Key) verdict {
	g.expire(now)
	if matches(g.keys.fields().MKey, key) {
		if g.lease == leaseRunning {
			g.lease = leaseHeld
		}
		return keyMatches
	}
	if method == mad.MethodGet && !getNeedsKey(g.keys.fields().Protect) {
		return keyDiffers
	}
	if g.violations < maxViolations {
		g.violations++
	}
	if g.lease != leaseRunning && g.keys.fields().LeasePeriod > 0 {
		g.lease, g.until = leaseRunning, now.Add(time.Duration(g.keys.fields().LeasePeriod)*time.Second)
	}
	return keyViolation
}

// expire ends a lease that is over, and reports whether it did.
func (g *keyGuard) expire(now time.Time) bool {
	if g.lease != leaseRunning || now.Before(g.until) {
		return false
	}
	g.lease, g.keys.fields().Protect = leaseEnded, 0
	return true
}

// set replaces the fields, by a request whose key matched.
func (g *keyGuard) set(fields KeyFields) {
	*g.keys.fields() = fields
	g.lease = leaseHeld
}

// shown is the M_Key in the PortInfo of an answer.
func (g *keyGuard) shown(v verdict) mad.Key {
	if showsKey(g.keys.fields().Protect, v == keyMatches) {
		return g.keys.fields().MKey
	}
	return 0
}
