package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Codes of an Error.
const (
	CodeInvalid     = "invalid"     // the request makes no sense
	CodeNotFound    = "not_found"   // no such peer, export, attachment
	CodeExists      = "exists"      // there already
	CodeInUse       = "in_use"      // something else needs it
	CodeForbidden   = "forbidden"   // the peer or the system refuses
	CodeUnavailable = "unavailable" // something that is needed does not answer
	CodeTimeout     = "timeout"     // it took too long
	CodeNoSpace     = "no_space"    // a pool or a file system has no room for it
	CodeUnsupported = "unsupported" // this storage cannot do it
	CodeInternal    = "internal"
)

// IsCode reports whether a word is one of the codes.
func IsCode(code string) bool { return code == CodeInternal || ExitStatus(code) != 1 }

// Error is what was tried and found, and what to do about it.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
	Reason  string `json:"reason,omitempty"` // of IPsec: one of the Reason constants, for programs
}

func (e *Error) Error() string {
	if e.Fix == "" {
		return Plain(e.Message)
	}
	return Plain(e.Message) + "\n" + e.Fix
}

// MarshalJSON writes the message without names of packages. It does not fail.
func (e Error) MarshalJSON() ([]byte, error) {
	type plain Error
	p := plain(e)
	p.Message = Plain(p.Message)
	return json.Marshal(p)
}

// ExitStatus is the command's exit status after an error of this code, 1 for an error
// of no particular kind.
func ExitStatus(code string) int {
	switch code {
	case CodeInvalid:
		return 2
	case CodeUnavailable:
		return 3
	case CodeNotFound:
		return 4
	case CodeExists:
		return 5
	case CodeInUse:
		return 6
	case CodeForbidden:
		return 7
	case CodeTimeout:
		return 8
	case CodeNoSpace:
		return 9
	case CodeUnsupported:
		return 10
	}
	return 1
}

// Is matches errors of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Event is one line of a streamed answer. Exactly one field is set.
type Event struct {
	Progress string          `json:"progress,omitempty"`
	Reply    *PingReply      `json:"reply,omitempty"`
	Row      *BenchRow       `json:"row,omitempty"`
	SA       *SAEvent        `json:"sa,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}

// Info is the daemon that answers at a control socket.
type Info struct {
	Version       string    `json:"version"`
	PID           int       `json:"pid"`
	Config        string    `json:"config"`
	ControlSocket string    `json:"control_socket"`
	StateDir      string    `json:"state_dir"`
	Started       time.Time `json:"started"`
}

// States of an export.
const (
	ExportReady   = "ready"
	ExportOpening = "opening" // its storage is being opened
	ExportProblem = "problem"
)

// ExportSpec declares an export.
type ExportSpec struct {
	Name     string   `json:"name"`
	Path     string   `json:"path"`
	ReadOnly bool     `json:"read_only,omitempty"`
	Writers  string   `json:"writers,omitempty"` // one, the default, migration or shared
	Allow    []string `json:"allow"`
	Trust    string   `json:"trust,omitempty"` // trust model of sessions of those allowed; "": as the service's

	Partition string `json:"partition,omitempty"` // in which alone it is offered; "": as the service's
	Label     string `json:"label,omitempty"`     // security label of who serves it; "": as the service's

	QoS QoS `json:"qos,omitzero"` // limits of its I/O
}

// ExportChange changes an export's declaration. Fields that are nil stay as they are.
type ExportChange struct {
	Allow    []string `json:"allow,omitempty"`    // who may attach it from now on, too
	Disallow []string `json:"disallow,omitempty"` // who may not any more
	Path     *string  `json:"path,omitempty"`
	ReadOnly *bool    `json:"read_only,omitempty"`
	Writers  *string  `json:"writers,omitempty"`
	Trust    *string  `json:"trust,omitempty"`

	Partition *string `json:"partition,omitempty"`
	Label     *string `json:"label,omitempty"`

	QoS *QoS `json:"qos,omitempty"`
}

// Export is an export as the daemon sees it.
type Export struct {
	ExportSpec
	Source  string `json:"source"`
	LUN     bool   `json:"lun,omitempty"` // it is one of a target: peers that attach it only read
	State   string `json:"state"`
	Problem *Error `json:"problem,omitempty"`
	// Warning is a fault that its storage may not report.
	Warning *Error `json:"warning,omitempty"`
	UUID    string `json:"uuid,omitempty"`      // of the disk, while it is open
	Size    int64  `json:"size_bytes,omitzero"` // absent: its storage is not open
	Opens   int    `json:"opens"`               // sessions that have it open
	// Generation counts how often writers were fenced. It stays with the disk.
	Generation uint64 `json:"generation"`
	IO         IO     `json:"io"`
	// Latency is what the storage takes.
	Latency []Latency `json:"latency,omitempty"`
}

// ResizeRequest asks for another size of an export.
type ResizeRequest struct {
	Size   int64 `json:"size_bytes"`
	Shrink bool  `json:"shrink,omitempty"` // it may be smaller than now, and lose its end
}

// FenceRequest asks that a peer be fenced from an export.
type FenceRequest struct {
	Peer string `json:"peer"` // by its name, or the identity that it has or had
	// TimeoutSeconds is how long its I/O may take to end; 0 is a minute.
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

// Fenced is what a fence has done.
type Fenced struct {
	Export     string  `json:"export"`
	Peer       string  `json:"peer"`
	Generation uint64  `json:"generation"`  // of the disk, from now on
	Tokens     []Token `json:"tokens"`      // that are void; none: the peer had none
	Drained    int     `json:"drained_ios"` // that were under way, and have ended
}

// Token is what lets a peer's attachment write to an export.
type Token struct {
	Attachment string `json:"attachment"` // its UUID
	Identity   string `json:"identity"`   // of the peer
	Name       string `json:"name,omitempty"`
}

// Offer is an export that a peer offers to this host.
type Offer struct {
	Name     string `json:"name"`
	Size     uint64 `json:"size_bytes"`
	ReadOnly bool   `json:"read_only"`
	Attached bool   `json:"attached"`
}

// States of an attachment.
const (
	AttachConnecting = "connecting" // no disk yet; the daemon keeps trying
	AttachReady      = "ready"
	AttachWaiting    = "waiting"  // the path is away; I/O waits
	AttachStalled    = "stalled"  // the path is up, and I/O does not end
	AttachFailed     = "failed"   // the peer does not let it be opened any more; I/O fails
	AttachOrphaned   = "orphaned" // its peer is gone, another one has its name, or its ULP has as many disks as it may; it has no socket
)

// AttachRequest asks for a peer's export.
type AttachRequest struct {
	Peer   string `json:"peer"`
	Export string `json:"export"`
	// Service is a name for which the fabric's directory is asked, in place of Peer and Export. The disk follows it: while
	// nobody uses it and it is not to be had where it was, it is attached from where the directory says that it is.
	Service string `json:"service,omitempty"`
	// Device asks for a block device of the kernel in place of an NBD socket. Name is what its
	// link below /dev/disk/by-ironwarp is called, "": PEER-EXPORT.
	Device         bool    `json:"device,omitempty"`
	Name           string  `json:"name,omitempty"`
	Migration      bool    `json:"migration,omitempty"` // as one of two writers, if the export permits that
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
	// VhostUser asks for a vhost-user socket in place of an NBD socket, at VhostSocket, "":
	// where the daemon chooses. Only root chooses another.
	VhostUser   bool   `json:"vhost_user,omitempty"`
	VhostSocket string `json:"vhost_user_socket,omitempty"`
	// Partition is that in which the peer offers it; "": as the ULP's declaration, or the service, says.
	Partition string `json:"partition,omitempty"`
}

// Removed is the outcome of the removal of a peer.
type Removed struct {
	Removed string `json:"removed"` // its name
	// Held is why parts of its guard stay in the kernel for now. The daemon removes them
	// when it can.
	Held []string `json:"held,omitempty"`
}

// Attachment is a remote disk and the NBD socket it is served on, its vhost-user socket, or its block device.
type Attachment struct {
	ULP        string `json:"ulp,omitempty"` // whose it is; "": root's
	Peer       string `json:"peer"`
	Export     string `json:"export"`
	Service    string `json:"service,omitempty"` // by whose name it was attached
	State      string `json:"state"`
	Problem    *Error `json:"problem,omitempty"`
	Socket     string `json:"nbd_socket"` // "": it has none, or a device
	URI        string `json:"nbd_uri"`
	Device     string `json:"device,omitempty"`      // such as /dev/nbd0, as long as it is there
	DeviceLink string `json:"device_link,omitempty"` // below /dev/disk/by-ironwarp
	// VhostSocket is the vhost-user socket that it is served on instead.
	VhostSocket string  `json:"vhost_user_socket,omitempty"`
	Partition   string  `json:"partition,omitempty"` // in which it is attached; "": in none
	Size        uint64  `json:"size_bytes,omitzero"` // absent: it has not been open yet
	ReadOnly    bool    `json:"read_only"`
	Clients     int     `json:"nbd_clients"`
	AgeSeconds  float64 `json:"age_seconds"`
	// OldestIOSeconds is how long the oldest I/O under way has been waiting.
	OldestIOSeconds float64 `json:"oldest_io_seconds,omitempty"`
	IO              IO      `json:"io"`
	// Latency is what its I/O takes, from its posting to its end, whatever path it took.
	Latency []Latency `json:"latency,omitempty"`
}

// Name is PEER/EXPORT.
func (a Attachment) Name() string { return a.Peer + "/" + a.Export }

// IO counts block I/O, and its rates over the last seconds.
type IO struct {
	Reads         uint64  `json:"reads"`
	Writes        uint64  `json:"writes"`
	ReadBytes     uint64  `json:"read_bytes"`
	WriteBytes    uint64  `json:"write_bytes"`
	Errors        uint64  `json:"errors"`
	ReadsPerSec   float64 `json:"reads_per_second"`
	WritesPerSec  float64 `json:"writes_per_second"`
	ReadBytesSec  float64 `json:"read_bytes_per_second"`
	WriteBytesSec float64 `json:"write_bytes_per_second"`
}

// Stream is one RDMA stream.
type Stream struct {
	ID         string  `json:"id"`
	Peer       string  `json:"peer"`
	Identity   string  `json:"identity"` // what IKE authenticated
	Service    string  `json:"service"`
	Program    string  `json:"program,omitempty"` // that carries it, as it calls itself; "": the daemon
	PID        int32   `json:"pid,omitempty"`
	Transport  string  `json:"transport"` // tcp, sctp, sctp-udp
	Flow       string  `json:"flow"`
	Protection string  `json:"protection"`
	Paused     bool    `json:"paused"`
	AgeSeconds float64 `json:"age_seconds"`
	BytesIn    uint64  `json:"bytes_in"`
	BytesOut   uint64  `json:"bytes_out"`
	Partition  string  `json:"partition,omitempty"` // that it is of; "": of none
	Label      string  `json:"label,omitempty"`     // security label of this end; "": the default one, or of no partition
	Trust      string  `json:"trust"`               // the trust model that it runs under; "": that of a program
	Idle       float64 `json:"idle_seconds"`        // since it last moved something
	// Slow counts the slow paths that the peer made it take; kinds with none are left out.
	Slow []SlowPath `json:"slow_path,omitempty"`
}

// Session is one block session and its paths.
type Session struct {
	ULP        string  `json:"ulp,omitempty"` // of a client: whose it is; "": root's
	Peer       string  `json:"peer"`
	Role       string  `json:"role"` // client, server
	State      string  `json:"state"`
	Streams    int     `json:"streams"`
	Reconnects uint64  `json:"reconnects"`
	InFlight   int     `json:"in_flight"`
	AgeSeconds float64 `json:"age_seconds"`
	// OpenChunks of a server: requests stay open to the peer while they are carried out.
	OpenChunks bool `json:"open_chunks,omitzero"`
	// Versions of the protocols that were agreed on, the lowest of the paths.
	RTRS string `json:"rtrs_version,omitempty"`
	RNBD string `json:"rnbd_version,omitempty"` // of a client
	// Of a client: how I/O is spread over the paths, what becomes of it without one, how many
	// attempts to bring a path up may fail in a row (0: any number), and the paths.
	Policy            string        `json:"policy,omitempty"`
	NoPath            string        `json:"no_path,omitempty"`
	FailAfterSeconds  float64       `json:"fail_after_seconds,omitzero"`
	ReconnectAttempts int           `json:"reconnect_attempts,omitzero"`
	Paths             []SessionPath `json:"paths,omitempty"`
}

// States of a session and its paths beside those of package rtrs, and paused.
const (
	SessionFailing = "failing"  // I/O fails: there is no path, and it waits no longer
	PathGivenUp    = "given-up" // until it is reconnected
)

// SessionPath is a path of a session with a peer.
type SessionPath struct {
	Name         string  `json:"name"`
	Address      string  `json:"address"` // of the peer, with its port
	LocalAddress string  `json:"local_address,omitempty"`
	Transport    string  `json:"transport,omitempty"` // of its streams, as long as it has any
	State        string  `json:"state"`               // connecting, connected, reconnecting, disconnected, given-up
	Paused       bool    `json:"paused"`              // a stream waits for its SA
	Avoided      bool    `json:"avoided"`             // its SA is away, and I/O goes by the others
	AgeSeconds   float64 `json:"age_seconds"`         // of the state
	Streams      int     `json:"streams"`
	InFlight     int     `json:"in_flight"` // requests that were not answered
	// LatencySeconds is what a request takes, a moving average; absent while none was measured.
	LatencySeconds float64 `json:"latency_seconds,omitzero"`
	Reconnects     uint64  `json:"reconnects"`      // after it had been up
	Failures       uint64  `json:"failed_connects"` // attempts to connect that failed
	Failovers      uint64  `json:"failovers"`       // requests that went on by another path
	// Replays are the requests that were sent again by this path, by what they do: read,
	// write, flush, trim, write zeroes, cache, block status.
	Replays    map[string]uint64 `json:"replays,omitempty"`
	Reads      uint64            `json:"reads"`
	Writes     uint64            `json:"writes"`
	ReadBytes  uint64            `json:"read_bytes"`
	WriteBytes uint64            `json:"write_bytes"`
	Problem    *Error            `json:"problem,omitempty"` // why it is not connected
}

// Listener is an address at which the daemon accepts peers.
type Listener struct {
	Address   string   `json:"address"`
	Transport string   `json:"transport"`                // tcp, sctp, sctp-udp
	UDPPort   uint16   `json:"udp_port,omitempty"`       // of sctp-udp
	More      []string `json:"more_addresses,omitempty"` // of sctp
	Partition string   `json:"partition,omitempty"`      // whose streams come here; "": of none
	State     string   `json:"state"`                    // listening, problem
	Problem   *Error   `json:"problem,omitempty"`
}

// Component is a part of the host that the daemon needs.
type Component struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Detail  string `json:"detail,omitempty"`
	Problem *Error `json:"problem,omitempty"`
}

// Status is everything at once.
type Status struct {
	Info           Info            `json:"info"`
	IKE            *Component      `json:"ike,omitempty"` // nil when no peer needs it
	Listeners      []Listener      `json:"listeners"`
	Peers          []Peer          `json:"peers"`
	SAs            []SA            `json:"sas"`
	Streams        []Stream        `json:"streams"`
	Sessions       []Session       `json:"sessions"`
	Exports        []Export        `json:"exports"`
	Pools          []Pool          `json:"pools"`
	Targets        []Target        `json:"targets"`
	NVMe           []NVMeSubsystem `json:"nvme"`
	Portals        []Listener      `json:"portals"` // where iSCSI initiators may come
	TargetSessions []TargetSession `json:"target_sessions"`
	Attachments    []Attachment    `json:"attachments"`
	Refused        uint64          `json:"refused_connections"`
	LastRefused    string          `json:"last_refused,omitempty"`
	LastRefusedFix string          `json:"last_refused_fix,omitempty"`
	Guard          *Guard          `json:"guard,omitempty"` // nil when no peer needs it
	Blocks         []Block         `json:"blocks"`
	Captures       []Capture       `json:"captures"`
	Fabric         *FabricStatus   `json:"fabric,omitempty"`   // nil: this host is in none
	Unusable       []*Error        `json:"unusable,omitempty"` // parts of the configuration that do nothing
	Partitions     []Partition     `json:"partitions,omitempty"`
	// Permissive is the policy of partitions if it lets pass what it denies.
	Permissive string `json:"permissive,omitempty"`
}

// Reloaded is what a reload changed.
type Reloaded struct {
	Changed []string `json:"changed"` // one line each
	Restart []string `json:"restart"` // settings that wait for a restart of the daemon
	// Unusable are parts of the configuration that were read and cannot be used: files
	// that are missing, users who do not exist.
	Unusable []*Error `json:"unusable,omitempty"`
}

// Modes of a ping.
const (
	PingRead = "read" // RDMA Reads: the peer's RNIC answers
	PingSend = "send" // Sends that the peer's ping service sends back
)

// PingRequest asks for round trips.
type PingRequest struct {
	Peer            string  `json:"peer"`
	Mode            string  `json:"mode,omitempty"`
	Transport       string  `json:"transport,omitempty"` // one of those that the peer may have; "": as other streams
	Count           int     `json:"count,omitempty"`
	Size            int     `json:"size,omitempty"`
	IntervalSeconds float64 `json:"interval_seconds,omitempty"`
	TimeoutSeconds  float64 `json:"timeout_seconds,omitempty"`
}

// PingReply is one round trip.
type PingReply struct {
	Seq    int     `json:"seq"`
	Micros float64 `json:"microseconds"`
}

// PingResult sums a ping up. Times are absent if nothing came back.
type PingResult struct {
	Peer       string  `json:"peer"`
	Identity   string  `json:"identity"`
	Mode       string  `json:"mode"`
	Size       int     `json:"size"`
	Sent       int     `json:"sent"`
	Received   int     `json:"received"`
	Setup      float64 `json:"setup_microseconds,omitzero"` // SA, association or connection, and stream
	Min        float64 `json:"min_microseconds,omitzero"`
	P50        float64 `json:"p50_microseconds,omitzero"`
	P99        float64 `json:"p99_microseconds,omitzero"`
	Max        float64 `json:"max_microseconds,omitzero"`
	Stream     string  `json:"stream"`
	Transport  string  `json:"transport"`
	Protection string  `json:"protection"`
}

// BenchRequest asks for a short benchmark.
type BenchRequest struct {
	Peer           string  `json:"peer"`
	Transport      string  `json:"transport,omitempty"` // as in PingRequest
	Seconds        float64 `json:"seconds_per_row,omitempty"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

// BenchRow is one line of a benchmark.
type BenchRow struct {
	Op          string  `json:"op"`
	Size        int     `json:"size"`
	Depth       int     `json:"depth"`
	Operations  uint64  `json:"operations"`
	OpsPerSec   float64 `json:"ops_per_second"`
	BytesPerSec float64 `json:"bytes_per_second"`
	P50         float64 `json:"p50_microseconds,omitzero"` // of one operation; absent: not measured
	P99         float64 `json:"p99_microseconds,omitzero"`
}

// BenchResult is a whole benchmark.
type BenchResult struct {
	Peer       string     `json:"peer"`
	Transport  string     `json:"transport"`
	Protection string     `json:"protection"`
	Rows       []BenchRow `json:"rows"`
}

// SplitDisk splits PEER/EXPORT.
func SplitDisk(s string) (peer, export string, err error) {
	peer, export, ok := strings.Cut(s, "/")
	if !ok || peer == "" || export == "" || strings.Contains(export, "/") {
		return "", "", &Error{Code: CodeInvalid, Message: fmt.Sprintf("%q does not name a disk", s), Fix: "write PEER/EXPORT, such as beta/docs"}
	}
	return peer, export, nil
}
