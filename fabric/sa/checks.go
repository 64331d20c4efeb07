//go:build !weakened

package sa

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// The checks of the enhanced trust model (docs/security.md), one function each. weakened.go has them with switches.

// A request whose SA_Key is neither 0 nor the directory's is dropped, and the right one alone makes it trusted.
func isForged(key, ours mad.Key) bool  { return wrongKey(key, ours) }
func isTrusted(key, ours mad.Key) bool { return rightKey(key, ours) }

// sa_check_sgid_spoofing: a request comes from one of its port's addresses.
func isSpoofed(o Options, own, router bool) bool { return spoofs(o, own, router) }

// sa_enhanced_trust_model: the set of what the untrusted may ask.
func mayAsk(r *request) bool { return inSet(r) }

// sa_etm_allow_untrusted_guidinfo_rec, sa_etm_allow_guidinfo_rec_by_vf.
func mayChangeGUIDs(o Options, trusted bool) bool    { return guidInfoOfUntrusted(o, trusted) }
func vportMayChangeGUIDs(o Options, vport bool) bool { return guidInfoOfVPort(o, vport) }

// sa_etm_allow_untrusted_proxy_requests.
func mayBeProxy(o Options, trusted bool) bool { return proxyOfUntrusted(o, trusted) }

// sa_etm_max_num_mcgs, sa_etm_max_num_srvcs, sa_etm_max_num_event_subs: one more is within the limit.
func withinLimit(has, limit int) bool { return below(has, limit) }

// What a requester has counts until it goes: a reconnect is no new allowance.
func keepsCount() bool { return true }

// A lease ends, and so does what a host had that does not come back.
func isOver(left time.Duration) bool { return left <= 0 }

// A service is changed and deleted by whom it is of, or who knows its key; a membership and an alias by whom they are of.
func mayChangeService(owner, key bool) bool { return owner || key }
func mayChangeMember(owner bool) bool       { return owner }
func mayChangeAlias(owner bool) bool        { return owner }

// Its key is shown to the trusted.
func showsServiceKey(trusted bool) bool { return trusted }

// Traps 256 to 259 are for the trusted.
func maySeeSecurity(trusted bool) bool { return trusted }

// A GUID of one host is no alias of another's.
func isFreeGUID(taken bool) bool { return !taken }

// Names that can't be printed are refused.
func isName(err error) bool { return err == nil }

// A port is who its stream was authenticated as, whatever LIDs a record has.
func isOwnLID(lid, own mad.LID) bool { return lid == own }

// Dropped requests without end take few lines of a log.
func isLogged(number uint64) bool { return onMark(number) }
