package daemon

import (
	"context"
	"fmt"
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

// ike is the IPsec manager, which exists from the first peer that needs it.
type ike struct {
	made chan struct{} // closed when the manager exists

	mu     sync.Mutex
	m      *ipsec.Manager
	cancel context.CancelFunc
	done   chan struct{}
}

func newIKE() ike { return ike{made: make(chan struct{})} }

// firstTry is how long the first peer waits for strongSwan.
const firstTry = 5 * time.Second

// ikeManager returns the manager, and starts it if need be. The first peer waits until
// strongSwan was reached, or not: who was told that a peer is there may use it at once.
func (d *Daemon) ikeManager(ctx context.Context, c config.IPsec) (*ipsec.Manager, error) {
	m, err := d.startIKE(c)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(firstTry)
	defer timer.Stop()
	select {
	case <-m.Tried():
	case <-timer.C:
	case <-ctx.Done():
	}
	return m, nil
}

func (d *Daemon) startIKE(c config.IPsec) (*ipsec.Manager, error) {
	d.ike.mu.Lock()
	defer d.ike.mu.Unlock()
	if d.ike.m != nil {
		return d.ike.m, nil
	}
	plane, err := esp.ParsePlane(c.DataPlane)
	if err != nil {
		return nil, err
	}
	m, err := ipsec.New(ipsec.Config{Socket: c.VICI, DataPlane: plane, Logger: d.log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.ike.m, d.ike.cancel, d.ike.done = m, cancel, make(chan struct{})
	close(d.ike.made)
	go func() {
		defer close(d.ike.done)
		if err := m.Run(ctx); err != nil {
			d.log.Error("the IPsec manager has ended", "error", err)
		}
	}()
	return m, nil
}

// current returns the manager, nil if no peer ever needed it.
func (k *ike) current() *ipsec.Manager {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.m
}

func (k *ike) close() error {
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

// component describes the IKE daemon in a status.
func (k *ike) component() *api.Component {
	m := k.current()
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
