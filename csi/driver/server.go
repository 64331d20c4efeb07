package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	mount "k8s.io/mount-utils"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// Config is what a plugin serves.
type Config struct {
	Version string
	Log     *slog.Logger

	Controller bool   // the Controller service, for Hosts
	Hosts      []Host // in the order in which they are tried

	Node     bool              // the Node service, with what is below
	NodeID   string            // by which storage hosts know the node: their peer's name, or its IKE identity behind "id:"
	Topology map[string]string // of the node
	Most     int64             // volumes that it may have at once; 0: as many as its daemon attaches
	BaseDir  string            // below which all staging and target paths are, such as /var/lib/kubelet
	StateDir string            // where it notes what it has staged

	mounter *mount.SafeFormatAndMount // nil: the real one
	sockets bool                      // attach NBD sockets in place of the kernel's devices
}

// Server is a plugin: the services of a Config, over one daemon.
type Server struct {
	grpc *grpc.Server
	log  *slog.Logger
}

// New returns a plugin over a daemon. It fails where the configuration makes no sense.
func New(daemon Daemon, c Config) (*Server, error) {
	s := &Server{log: c.Log}
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.UnaryInterceptor(s.intercept))
	topology := len(c.Topology) > 0
	if c.Controller {
		if len(c.Hosts) == 0 {
			return nil, errors.New("a controller needs a storage host at least (--host)")
		}
		for i, h := range c.Hosts {
			if h.Name != ownHost && !isName(h.Name, maxHost) {
				return nil, fmt.Errorf("storage host %q: it has to be the name of a peer, or %s for this host", h.Name, ownHost)
			}
			for _, g := range c.Hosts[:i] {
				if g.Name == h.Name {
					return nil, fmt.Errorf("storage host %s is there twice", h.Name)
				}
			}
			topology = topology || len(h.Topology) > 0
		}
		csi.RegisterControllerServer(s.grpc, &Controller{daemon: daemon, hosts: c.Hosts})
	}
	if c.Node {
		if err := checkNodeID(c.NodeID); err != nil {
			return nil, fmt.Errorf("node id %q (--node-id): %w", c.NodeID, err)
		}
		if !filepath.IsAbs(c.BaseDir) || !filepath.IsAbs(c.StateDir) {
			return nil, fmt.Errorf("the folders %q and %q have to be absolute paths", c.BaseDir, c.StateDir)
		}
		n := &Node{id: c.NodeID, topology: c.Topology, most: c.Most, base: filepath.Clean(c.BaseDir), records: records{c.StateDir},
			disks: disks{daemon, !c.sockets}, mounter: c.mounter}
		if n.mounter == nil {
			n.mounter = mounting()
		}
		csi.RegisterNodeServer(s.grpc, n)
	}
	if !c.Controller && !c.Node {
		return nil, errors.New("neither the controller nor the node service is asked for")
	}
	csi.RegisterIdentityServer(s.grpc, &Identity{daemon: daemon, version: c.Version, controller: c.Controller, topology: topology})
	return s, nil
}

// intercept logs what became of a call. Of the request it logs nothing but the volume's id: there may be secrets in it.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	begun := time.Now()
	out, err := handle(ctx, req)
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelWarn
	}
	id := ""
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		id = printable.Cut(printable.Text(r.GetVolumeId()), maxID)
	}
	st := status.Convert(err)
	s.log.Log(ctx, level, "call", "method", info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], "volume", id, "code", st.Code().String(),
		"error", printable.Text(st.Message()), "took", time.Since(begun).Round(time.Millisecond))
	return out, err
}

// Listen opens the plugin's socket, at unix:///PATH or a path, for root alone. One that was left behind is replaced. It fails with
// the system's error, and where something else than a socket is at the path.
func Listen(endpoint string) (net.Listener, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		path = strings.TrimPrefix(endpoint, "unix:")
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("endpoint %q is not unix:///PATH", endpoint)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("endpoint %s: something that is not a socket is there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve answers calls until ctx ends; then those that are under way get a while to end. It fails with the listener's error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(shutdownTime, s.grpc.Stop)
		defer timer.Stop()
		s.grpc.GracefulStop()
	})
	defer stop()
	if err := s.grpc.Serve(l); err != nil {
		return fmt.Errorf("serve the plugin's socket: %w", err)
	}
	return nil
}
