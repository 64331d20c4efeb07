package daemon

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/programs"
	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport"
)

// serviceOfRootsPrograms is what streams of root's programs are listed under; those of a ULP's have its name.
const serviceOfRootsPrograms = "programs"

// declaredAgain is how long programs have to declare the streams again to a daemon that was started anew: what is up goes on, also on a host
// that was drained before.
const declaredAgain = 30 * time.Second

func (d *Daemon) newPrograms() *programs.Programs {
	return programs.New(programs.Config{
		Log: d.log, Config: d.config, Consumers: d.local, Protector: transport.PerPeer(d.protectorFor), Created: d.blocks.Created,
		Check: func(a netip.Addr) error {
			if d.directory.Drained() && time.Since(d.started) > declaredAgain {
				return errDrained
			}
			_, err := d.protectorFor(a)
			return err
		},
		Peer: func(a netip.Addr) (config.Peer, bool) {
			if p := d.peers.byAddress(a); p != nil {
				return p.cfg, true
			}
			return config.Peer{}, false
		},
		MayUse: d.partitions.MayUse,
		Peers: func() map[string][]netip.Addr {
			out := map[string][]netip.Addr{}
			for _, p := range d.peers.list() {
				for _, pair := range p.cfg.Pairs() {
					out[p.cfg.Name] = append(out[p.cfg.Name], pair.Address)
				}
			}
			return out
		},
	})
}

// flowsRoute makes a program's connection one of package transport/delegate.
func (d *Daemon) flowsRoute(w http.ResponseWriter, r *http.Request) {
	who, conn := callerOf(r.Context()), r.Context().Value(connKey{}).(*local.Conn)
	hijacker, ok := w.(http.Hijacker)
	if r.Header.Get("Upgrade") != api.FlowsProtocol || !ok {
		respond(w, nil, &api.Error{Code: api.CodeInvalid, Message: "this is for programs under `ironwarp run`, which ask for " + api.FlowsProtocol,
			Fix: "are the program's libraries and the daemon of the same version? See `ironwarp version`"})
		return
	}
	_, rw, err := hijacker.Hijack()
	if err != nil {
		respond(w, nil, err)
		return
	}
	unix := conn.Detach()
	if unix == nil || rw.Reader.Buffered() > 0 {
		conn.Close()
		return
	}
	if _, err := rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + api.FlowsProtocol + "\r\n\r\n"); err != nil || rw.Flush() != nil {
		conn.Close()
		return
	}
	sockio.PassRights(unix, true) // it sends none before it has its terms
	who.Requests.Add(1)           // this request ends now, and the program has just begun
	d.run(func(ctx context.Context) {
		defer who.Requests.Done()
		d.programs.Serve(ctx, unix, conn.User, who)
	})
}
