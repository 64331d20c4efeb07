package verbs

import (
	"errors"
	"fmt"
	"slices"
)

// TrustModel is how much the streams of a protection domain, and their peers, are
// trusted: one of the five of RFC 5042 appendix C. The zero value trusts nobody.
type TrustModel uint8

// The trust models.
const (
	NSNT TrustModel = iota // nothing is shared, nobody is trusted: the safest
	NSRT                   // nothing is shared, the remote peer is partially trusted
	SNT                    // streams share resources, nobody is trusted
	SLT                    // streams share resources and trust each other, not their peers
	ST                     // streams share resources, they and their peers trust each other
)

var trustNames = [...]string{NSNT: "NS-NT", NSRT: "NS-RT", SNT: "S-NT", SLT: "S-LT", ST: "S-T"}

func (m TrustModel) String() string {
	if int(m) < len(trustNames) {
		return trustNames[m]
	}
	return fmt.Sprintf("trust model %d", uint8(m))
}

// ParseTrustModel returns the TrustModel whose String is s. For any other s the error
// lists the valid ones.
func ParseTrustModel(s string) (TrustModel, error) {
	for m, name := range trustNames {
		if s == name {
			return TrustModel(m), nil
		}
	}
	return 0, fmt.Errorf("verbs: trust model %q: NS-NT, NS-RT, S-NT, S-LT and S-T are possible (RFC 5042 appendix C)", s)
}

// TrustModels returns all of them, the safest first.
func TrustModels() []TrustModel { return []TrustModel{NSNT, NSRT, SNT, SLT, ST} }

// Trust is what a TrustModel permits. Each field is a rule of RFC 5042 that the
// model waives.
type Trust struct {
	// ShareStreams: a protection domain, a completion queue, a shared receive queue
	// and an SCTP association that this end sets up may serve several streams (section
	// 3).
	ShareStreams bool
	// ShareSTags: STags of memory regions, which are valid on all streams of the
	// protection domain, may have remote rights, and the peer of any of them may
	// invalidate them (sections 6.1.1 and 6.4.5). Otherwise, where there may be several
	// streams, remote access needs memory windows, each for one stream, and what the
	// peer of one can write is not open to that of another (section 6.3.6).
	ShareSTags bool
	// Overcommit: a completion queue may be smaller than what its queue pairs and
	// shared receive queues may have posted (section 6.4.3.2).
	Overcommit bool
	// UnlimitedSRQ: a stream may take all receives of a shared receive queue
	// (section 6.4.3.1).
	UnlimitedSRQ bool
	// Alias: memory that may be written can be registered in several protection
	// domains (section 6.3.6).
	Alias bool
	// KeepIdle: idle streams of a privileged ULP are not ended when streams run short
	// (section 6.4.2).
	KeepIdle bool
}

// Trust is the table of the models.
func (m TrustModel) Trust() Trust {
	switch m {
	case NSRT: // one stream, which may spoil its own queue
		return Trust{ShareSTags: true, Overcommit: true, Alias: true, KeepIdle: true}
	case SNT:
		return Trust{ShareStreams: true}
	case SLT:
		return Trust{ShareStreams: true, ShareSTags: true, Overcommit: true}
	case ST:
		return Trust{ShareStreams: true, ShareSTags: true, Overcommit: true, UnlimitedSRQ: true, Alias: true, KeepIdle: true}
	}
	// With one stream, an STag is that stream's, and the queue that overflows too.
	return Trust{ShareSTags: true, Overcommit: true}
}

// Permits reports whether whoever may use m may use n: n waives no rule that m does not
// waive.
func (m TrustModel) Permits(n TrustModel) bool {
	a, b := m.Trust(), n.Trust()
	implies := func(x, y bool) bool { return !x || y }
	return implies(b.ShareStreams, a.ShareStreams) && implies(b.UnlimitedSRQ, a.UnlimitedSRQ) &&
		implies(b.Alias, a.Alias) && implies(b.KeepIdle, a.KeepIdle) &&
		(!b.ShareStreams || implies(b.ShareSTags, a.ShareSTags) && implies(b.Overcommit, a.Overcommit))
}

// Meet is the model that waives the most of those that both m and n permit.
func (m TrustModel) Meet(n TrustModel) TrustModel {
	models := TrustModels()
	for _, x := range slices.Backward(models) {
		if m.Permits(x) && n.Permits(x) {
			return x
		}
	}
	return NSNT
}

// Alone is m for protection domains of one stream each, as of a service that shares
// nothing although it might: NS-RT if m trusts the peers, NS-NT otherwise.
func (m TrustModel) Alone() TrustModel {
	if m == NSRT || m == ST {
		return NSRT
	}
	return NSNT
}

// ErrTrust is in errors of calls that the trust model does not permit.
var ErrTrust = errors.New("the trust model does not permit it")

// trustError is the error of what, which RFC 5042 forbids under m.
func trustError(m TrustModel, section, what string) error {
	return fmt.Errorf("verbs: %s: %w (%v, RFC 5042 section %s)", what, ErrTrust, m, section)
}
