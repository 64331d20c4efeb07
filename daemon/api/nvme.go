package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// NVMeSubsystemSpec declares an NVM subsystem.
type NVMeSubsystemSpec struct {
	Name               string              `json:"name"`
	NQN                string              `json:"nqn"`
	Port               uint16              `json:"port,omitempty"`                // 0: 4420
	Addresses          []string            `json:"addresses,omitempty"`           // of portals; none: those at which its peers reach this host
	Peers              []string            `json:"peers"`                         // whose hosts may connect
	Hosts              []string            `json:"hosts"`                         // NQNs of those that may; none: any on these peers
	InsecureUndeclared bool                `json:"insecure_undeclared,omitempty"` // hosts that are no peers may connect, in clear
	Namespaces         []NVMeNamespaceSpec `json:"namespaces"`
}

// NVMeNamespaceSpec declares a namespace: a disk that is an export's, or that has a path.
type NVMeNamespaceSpec struct {
	NSID      int    `json:"nsid"`
	Export    string `json:"export,omitempty"`
	Path      string `json:"path,omitempty"`
	BlockSize int    `json:"block_size,omitempty"` // 512, the default, or 4096
	ReadOnly  bool   `json:"read_only,omitempty"`
	Thin      *bool  `json:"thin,omitempty"` // false: what hosts deallocate is not given back
}

// NVMeSubsystem is a subsystem as the daemon sees it.
type NVMeSubsystem struct {
	NVMeSubsystemSpec
	Source      string          `json:"source"`
	State       string          `json:"state"` // TargetReady, TargetWaiting or TargetProblem
	Problem     *Error          `json:"problem,omitempty"`
	Portals     []string        `json:"portals"` // as address:port
	Units       []NVMeNamespace `json:"units"`
	Controllers int             `json:"controllers"`
	Connects    uint64          `json:"connects"` // of hosts
	Refused     uint64          `json:"refused_connects"`
}

// NVMeNamespace is a namespace as the daemon sees it.
type NVMeNamespace struct {
	NVMeNamespaceSpec
	State   string `json:"state"`
	Problem *Error `json:"problem,omitempty"`
	UUID    string `json:"uuid,omitempty"`      // of the disk, while it is open
	Size    int64  `json:"size_bytes,omitzero"` // absent: its storage is not open
	IO      IO     `json:"io"`                  // since its storage was opened
	// Latency is what Read, Write and Flush commands took that had no error, from their beginning at the storage to their answers.
	Latency []Latency `json:"latency,omitempty"`
}

// NVMeController is a host's controller in a subsystem.
type NVMeController struct {
	ID               int     `json:"id"`
	Subsystem        string  `json:"subsystem,omitempty"` // by its name here
	Discovery        bool    `json:"discovery,omitempty"`
	Host             string  `json:"host"` // its NQN
	HostID           string  `json:"host_id"`
	Peer             string  `json:"peer,omitempty"`     // absent: a host that is no peer
	Identity         string  `json:"identity,omitempty"` // that IKE has authenticated
	Address          string  `json:"address"`
	Portal           string  `json:"portal"`
	AgeSeconds       float64 `json:"age_seconds"`
	KeepAliveSeconds float64 `json:"keep_alive_seconds"` // 0: it may be silent
	Queues           int     `json:"queues"`             // for I/O
	InFlight         int     `json:"in_flight"`
	IO               IO      `json:"io"`
}

// NVMeSubsystems lists the NVM subsystems. It fails as each call does.
func (c *Client) NVMeSubsystems(ctx context.Context) (v []NVMeSubsystem, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/nvme/subsystems", nil, &v)
}

// NVMeSubsystem describes a subsystem. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) NVMeSubsystem(ctx context.Context, name string) (v NVMeSubsystem, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/nvme/subsystems/"+url.PathEscape(name), nil, &v)
}

// AddNVMeSubsystem declares a subsystem and offers it. It fails as each call does, with CodeExists for a name that is
// taken.
func (c *Client) AddNVMeSubsystem(ctx context.Context, spec NVMeSubsystemSpec) (v NVMeSubsystem, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/nvme/subsystems", spec, &v)
}

// RemoveNVMeSubsystem removes a subsystem. While it has controllers force is needed, and their I/O fails from then on. It
// fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) RemoveNVMeSubsystem(ctx context.Context, name string, force bool) error {
	return c.call(ctx, http.MethodDelete, "/v1/nvme/subsystems/"+url.PathEscape(name)+forceQuery(force), nil, nil)
}

// NVMeControllers lists the controllers of hosts. It fails as each call does.
func (c *Client) NVMeControllers(ctx context.Context) (v []NVMeController, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/nvme/controllers", nil, &v)
}

// EndNVMeController ends a controller, whose host may connect again. It fails as each call does, with CodeNotFound for an
// unknown one.
func (c *Client) EndNVMeController(ctx context.Context, id int) (v NVMeController, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/nvme/controllers/"+strconv.Itoa(id), nil, &v)
}
