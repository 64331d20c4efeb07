package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// Protection is what guards a peer's streams.
type Protection string

// The kinds of Protection.
const (
	ProtectIPsec     Protection = "ipsec"     // ESP, proved for every stream
	ProtectLoopback  Protection = "loopback"  // 127.0.0.0/8 and ::1 only
	ProtectPlaintext Protection = "plaintext" // nothing: insecure_plaintext: true
)

// Auth is how the hosts authenticate each other.
type Auth string

// The kinds of Auth.
const (
	AuthPSK  Auth = "psk"  // a secret that both have
	AuthCert Auth = "cert" // X.509 certificates
)

// Peer is another host of the link.
type Peer struct {
	Name         string
	Host         string // its DNS name, where it is declared by one; Address is where it is then
	Address      netip.Addr
	LocalAddress netip.Addr // zero: the address the route to Address uses
	Port         uint16     // the port of TCP and SCTP that the peer listens on
	Transport    Transport
	UDPPort      uint16      // where the peer listens for SCTP in UDP; 0 if it is not used
	Multihoming  []Addresses // further ones of associations, for TransportSCTP
	Paths        []Path      // further ones of sessions
	Protection   Protection
	CRC          bool                 // ask for MPA CRCs
	LargeFPDU    bool                 // agree on FPDUs larger than a TCP segment
	Connections  int                  // RDMA streams of each path of a session
	Policy       rtrs.Policy          // how a session's I/O is spread over its paths
	Heartbeat    rtrs.HeartbeatConfig // of the paths of sessions; 0 fields: the defaults of rtrs
	NoPath       rtrs.NoPath          // what becomes of I/O while a session has no path
	// ReconnectAttempts is how many may fail before a path of a session is given up; 0: any
	// number.
	ReconnectAttempts int
	// OpenChunks leaves the memory of the peer's requests open to it while they are carried
	// out: always_invalidate: false.
	OpenChunks bool
	Limits     Quota // 0 fields: Config.Limits.PerPeer
	Origin     Pos

	// Of IPsec alone.
	LocalID    string // IKE identity of this host; empty: its address
	RemoteID   string // IKE identity of the peer; empty: its address
	Auth       Auth
	PSKFile    string
	CertFile   string          // this host's certificate, then those of intermediate authorities
	KeyFile    string          // its private key
	CAFiles    []string        // authorities that may have issued the peer's certificate
	CRLURIs    []string        // where their revocation lists are
	OCSPURIs   []string        // where their OCSP responders are
	Revocation auth.Revocation // empty: auth.RevocationIfURI
	Gateway    netip.Addr      // where else the peer's ESP may end; zero: nowhere
	ChildSAs   int             // per direction
	IdleReap   time.Duration   // 0: never
	ISCSIPort  uint16          // a TCP port of iSCSI that the SAs cover, either host being the target; 0: none
	NVMePort   uint16          // and one of NVMe over RDMA; 0: none
	Profile    string          // name of an IPsec profile; empty: the default one
	Mode       string          // tunnel, transport; empty: the profile's

	// Programs are blocks of ports that the SAs cover: those of the ULPs whose programs may have
	// streams with the peer; sorted. Load fills it in.
	Programs []PortBlock

	// Partitions are those of which the peer is a member, by name. Load fills it in.
	Partitions []PeerPartition

	// Resolved is what Profile and Mode mean. Load fills it in.
	Resolved *profile.Profile

	profileAt Pos // of Profile
}

// defaultPeer has the settings of a peer that is declared with a name and an address
// only.
func defaultPeer() Peer {
	return Peer{Transport: TransportTCP, Protection: ProtectIPsec, CRC: true, LargeFPDU: true, Connections: DefaultConnections, ChildSAs: 1}
}

// Equal reports whether two declarations are the same, wherever they are written.
func (p Peer) Equal(q Peer) bool {
	p.Origin, q.Origin, p.profileAt, q.profileAt = Pos{}, Pos{}, Pos{}, Pos{}
	return reflect.DeepEqual(p, q)
}

// Setup is the start-up of streams to and from the peer.
func (p Peer) Setup() verbs.Setup {
	s := verbs.Setup{NoCRC: !p.CRC}
	if p.LargeFPDU {
		s.LargeFPDU = verbs.MaxLargeFPDU
	}
	return s
}

// SameEndpoints reports whether two declarations are of the same hosts and flows, so
// that streams of the one may go on under the other. With another number of child SAs
// the ports are divided differently, and no SA has the ports of old streams. Paths beside
// the first come and go without the others.
func (p Peer) SameEndpoints(q Peer) bool {
	return p.AllPaths()[0] == q.AllPaths()[0] && p.Protection == q.Protection && slices.Equal(p.Multihoming, q.Multihoming) &&
		p.LocalID == q.LocalID && p.Identity() == q.Identity() &&
		p.ChildSAs == q.ChildSAs && p.ISCSIPort == q.ISCSIPort && p.NVMePort == q.NVMePort && slices.Equal(p.Partitions, q.Partitions) && (p.Protection != ProtectIPsec || slices.Equal(p.Programs, q.Programs)) && p.Gateway == q.Gateway
}

// AddrPort is where the peer listens.
func (p Peer) AddrPort() netip.AddrPort { return netip.AddrPortFrom(p.Address, p.Port) }

// Identity is what IKE must have authenticated for a stream to be this peer's.
func (p Peer) Identity() string {
	return cmp.Or(p.RemoteID, p.Host, p.Address.String())
}

// Insecure lists the settings that weaken the peer's protection, in words for logs
// and people.
func (p Peer) Insecure() []string {
	if p.Protection == ProtectPlaintext {
		return []string{"its streams travel in clear and it is not authenticated"}
	}
	if p.Protection != ProtectIPsec {
		return nil
	}
	var out []string
	if p.Gateway.IsValid() {
		out = append(out, fmt.Sprintf("its ESP may end at the gateway %s; between there and %s nothing protects it (RFC 5042 5.4.5)", p.Gateway, p.Address))
	}
	if p.Resolved != nil {
		for _, w := range p.Resolved.Warnings() {
			out = append(out, "profile "+p.Resolved.Name+": "+w)
		}
	}
	return out
}
