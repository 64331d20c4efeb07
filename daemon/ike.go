package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
)

// ikeTime bounds one question to the IKE daemon from the control API, so that
// a status never hangs.
const ikeTime = 3 * time.Second

// ike is the IPsec manager, which exists from the first peer that needs it.
type ike struct {
	mu     sync.Mutex
	m      *ipsec.Manager
	cancel context.CancelFunc
	done   chan struct{}
}

// manager returns the manager, and starts it if need be.
func (d *Daemon) ikeManager(c config.IPsec) (*ipsec.Manager, error) {
	d.ike.mu.Lock()
	defer d.ike.mu.Unlock()
	if d.ike.m != nil {
		return d.ike.m, nil
	}
	plane, err := ipsec.ParseDataPlane(c.DataPlane)
	if err != nil {
		return nil, err
	}
	m, err := ipsec.New(ipsec.Config{Socket: c.VICI, DataPlane: plane, Logger: d.log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.ike.m, d.ike.cancel, d.ike.done = m, cancel, make(chan struct{})
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

// SAs lists the child SAs of all peers.
func (d *Daemon) SAs(ctx context.Context) ([]api.SA, error) {
	m := d.ike.current()
	if m == nil {
		return []api.SA{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ikeTime)
	defer cancel()
	list, err := m.SAs(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := []api.SA{}
	for _, s := range list {
		for _, c := range s.Children {
			out = append(out, api.SA{
				Peer: s.Peer, IKE: fmt.Sprintf("IKEv%d %s", s.Version, s.State), IKEID: fmt.Sprint(s.UniqueID),
				Child: c.Name, ChildID: fmt.Sprint(c.UniqueID), State: c.State, Protocol: espText(c), SPIIn: c.SPIIn, SPIOut: c.SPIOut,
				Algorithms: algorithms(c), BytesIn: c.BytesIn, BytesOut: c.BytesOut, PacketsIn: c.PacketsIn, PacketsOut: c.PacketsOut,
				AgeSeconds: now.Sub(c.Installed).Seconds(), LocalTS: selectors(c.LocalTS), RemoteTS: selectors(c.RemoteTS),
				LocalID: s.LocalID, RemoteID: s.RemoteID,
			})
		}
	}
	return out, nil
}

func espText(c ipsec.Child) string {
	s := c.Protocol + " " + strings.ToLower(c.Mode)
	if c.Encap {
		s += " in UDP"
	}
	return s
}

func algorithms(c ipsec.Child) string {
	s := c.Encryption
	if c.KeyBits > 0 {
		s += fmt.Sprintf("-%d", c.KeyBits)
	}
	if c.Integrity != "" {
		s += "/" + c.Integrity
	}
	return s
}

func selectors(list []ipsec.Selector) string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = fmt.Sprint(s)
	}
	return strings.Join(texts, " ")
}

// DeleteSAs deletes child SAs of a peer, all or those of one name. Streams
// pause and go on when traffic has brought new ones up.
func (d *Daemon) DeleteSAs(ctx context.Context, name, child string) (int, error) {
	p, err := d.findPeer(name)
	if err != nil {
		return 0, err
	}
	m := d.ike.current()
	if p.cfg.Protection != config.ProtectIPsec || m == nil {
		return 0, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no SAs: its protection is %s", name, p.cfg.Protection)}
	}
	ctx, cancel := context.WithTimeout(ctx, ikeTime)
	defer cancel()
	return m.DeleteChild(ctx, name, child)
}

// ikeProblem turns an error of the IPsec manager into one with advice.
func ikeProblem(peer string, err error) *api.Error {
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the protection of peer %s is not in place: %v", peer, err), Fix: "streams to it wait. `ironwarp doctor` says what is missing. The daemon keeps trying"}
	var neg *ipsec.NegotiationError
	var de *ipsec.DaemonError
	switch {
	case errors.As(err, &neg):
		e.Message = fmt.Sprintf("no IPsec SA with peer %s: %v", peer, neg.Kind)
		if neg.Advice != "" {
			e.Fix = neg.Advice
		}
	case errors.As(err, &de):
		e.Message = err.Error()
	case errors.Is(err, ipsec.ErrSecretFile), errors.Is(err, ipsec.ErrSecretShort):
		e.Code = api.CodeInvalid
		e.Message = fmt.Sprintf("the secret of peer %s: %v", peer, err)
		e.Fix = "both hosts need the same secret, in a file of mode 0600; then run `ironwarp reload`"
	}
	return e
}
