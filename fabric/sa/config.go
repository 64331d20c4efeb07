package sa

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Options are the options of the enhanced trust model, by the names that they have in fabric.conf.
type Options struct {
	EnhancedTrustModel          bool // sa_enhanced_trust_model
	AllowUntrustedGUIDInfoRec   bool // sa_etm_allow_untrusted_guidinfo_rec
	AllowGUIDInfoRecByVF        bool // sa_etm_allow_guidinfo_rec_by_vf
	AllowUntrustedProxyRequests bool // sa_etm_allow_untrusted_proxy_requests
	MaxNumMCGs                  int  // sa_etm_max_num_mcgs, per port and vport; 0: unlimited
	MaxNumSrvcs                 int  // sa_etm_max_num_srvcs, likewise
	MaxNumEventSubs             int  // sa_etm_max_num_event_subs, likewise
	CheckSGIDSpoofing           bool // sa_check_sgid_spoofing; it holds without the model, too
}

// DefaultOptions returns the options of an empty fabric.conf.
func DefaultOptions() Options {
	return Options{
		AllowUntrustedGUIDInfoRec:   true,
		AllowGUIDInfoRecByVF:        true,
		AllowUntrustedProxyRequests: true,
		CheckSGIDSpoofing:           true,
	}
}

// Config is what a Server is made of.
type Config struct {
	Options Options
	Key     mad.Key // SA_Key; 0: nobody is trusted

	// GUID is the manager's own port, the source of what it sends.
	GUID mad.GUID
	// Priority is the manager's, 0 to 15, as SMInfoRecord shows it.
	Priority uint8
	// Prefix is the upper half of all GIDs; 0 stands for mad.LinkLocalPrefix.
	Prefix uint64
	// Reserved reports whether a GUID is that of a host which may come up one day, such as a declared peer, or has the upper half of
	// such a GUID: it is given to no other port as an alias. A port's own range, the GUIDs with the upper half of its own,
	// is never asked about. nil: only hosts that are known are reserved.
	Reserved func(mad.GUID) bool

	// Log gets the dropped requests that are worth a line: of a run the numbers 0, 1, 2, 5, 10, 20, 50 and so on. nil: none.
	Log func(Drop)
	// Activity gets, of the same, those that an administrator should see as an event: wrong keys, addresses of others, and what
	// exceeds sa_etm_max_num_*. nil: none.
	Activity func(Drop)
}

// Requester is who has sent a request, as its stream was authenticated: nothing of it is read from the wire.
type Requester struct {
	GUID mad.GUID // of the port
	// VPort is the alias GUID of the vport, 0 for the physical port. Where it is 0 and the request's SGID is that of
	// a vport of this port, the request is that vport's: a host speaks for its own vports.
	VPort mad.GUID
}

// Outgoing is a packet to be sent to a port.
type Outgoing struct {
	To     mad.GUID
	Packet mad.Packet
}
