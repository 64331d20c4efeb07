// Package sas has the host's IPsec manager, from the first peer on that needs it: it lists the
// SAs, carries out orders about them, and says what is wrong and what to do about it.
package sas

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// ikeTime bounds one question to the IKE daemon from the control API, so that
// a status never hangs.
const ikeTime = 3 * time.Second

// orderTime bounds an order about SAs from there, which waits for the peer's answer.
const orderTime = 10 * time.Second

// Config is what SAs need from the rest of the host.
type Config struct {
	Log *slog.Logger
	// Peer finds a peer by name. It fails with an *api.Error where there is none.
	Peer func(name string) (Peer, error)
	// Owner is the peer that an IKE connection is of: the manager has one for each address
	// of a peer.
	Owner func(connection string) string
}

// Peer is a peer as it is declared now.
type Peer interface {
	Declared() config.Peer
	// Problem is why it could not be set up, nil if it could.
	Problem() *api.Error
}

// Control has the host's IPsec manager, which exists from the first peer that needs it.
type Control struct {
	cfg  Config
	made chan struct{} // closed when the manager exists

	mu     sync.Mutex // guards the fields below it
	m      *ipsec.Manager
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a Control without a manager.
func New(cfg Config) *Control { return &Control{cfg: cfg, made: make(chan struct{})} }

// FirstTry is how long the first peer waits for strongSwan.
const FirstTry = 5 * time.Second

// Manager returns the manager, and starts it if need be. The first peer waits until
// strongSwan was reached, or not: who was told that a peer is there may use it at once.
// It fails where the configuration names no data plane that there is.
func (k *Control) Manager(ctx context.Context, c config.IPsec) (*ipsec.Manager, error) {
	m, err := k.start(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, FirstTry)
	defer cancel()
	select {
	case <-m.Tried():
	case <-ctx.Done():
	}
	return m, nil
}

func (k *Control) start(c config.IPsec) (*ipsec.Manager, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m != nil {
		return k.m, nil
	}
	plane, err := esp.ParsePlane(c.DataPlane)
	if err != nil {
		return nil, err
	}
	m, err := ipsec.New(ipsec.Config{Socket: c.VICI, DataPlane: plane, Logger: k.cfg.Log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	k.m, k.cancel, k.done = m, cancel, done
	close(k.made)
	go func() {
		defer close(done)
		if err := m.Run(ctx); err != nil {
			k.cfg.Log.Error("the IPsec manager has ended", "error", err)
		}
	}()
	return m, nil
}

// Current returns the manager, nil if no peer ever needed it.
func (k *Control) Current() *ipsec.Manager {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.m
}

// Close ends the manager. It fails as that does.
func (k *Control) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m == nil {
		return nil
	}
	err := k.m.Close()
	k.cancel()
	<-k.done
	return err
}

// Component describes the IKE daemon in a status.
func (k *Control) Component() *api.Component {
	m := k.Current()
	if m == nil {
		return nil
	}
	st := m.DaemonStatus()
	c := &api.Component{Name: "strongSwan", State: "connected"}
	if st.Connected {
		c.Detail = strings.TrimSpace(fmt.Sprintf("%s %s, %s", st.Daemon, st.Version, st.DataPlane))
		if st.Reason != "" {
			c.Detail += " (" + st.Reason + ")"
		}
		return c
	}
	c.State, c.Detail = api.PeerProblem, st.Socket
	msg := st.LastError
	if msg == "" {
		msg = "not connected to strongSwan at " + st.Socket
	}
	c.Problem = &api.Error{Code: api.CodeUnavailable, Message: msg,
		Fix: "streams to IPsec peers wait; what is in place stays guarded. `ironwarp doctor` says what is missing. The daemon keeps trying"}
	return c
}
