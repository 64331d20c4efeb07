package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) peerList(c *cli.Context) error {
	return list(w, c, (*api.Client).Peers, "no peers; add one with `ironwarp peer add NAME ADDRESS`", func(peers []api.Peer) {
		w.peerTable(peers)
		for _, p := range peers {
			w.insecure(p)
			w.problem(p.Problem)
		}
	})
}

func (w *ironwarp) peerTable(peers []api.Peer) {
	t := w.sheet("peer", "address", "?>port", "transport", "protection", "state", ">streams", "?may attach")
	for _, p := range peers {
		t.row(p.Name, p.Address, p.Port, transportText(p), protectionText(p), w.stateText(p.State), p.Streams, orDash(strings.Join(p.Exports, " ")))
	}
	t.print()
}

// transportText is what carries a peer's streams.
func transportText(p api.Peer) string {
	if p.Transport != string(config.TransportAuto) || p.Carrier.Transport == "" {
		return p.Transport
	}
	return p.Carrier.Transport + " (auto)"
}

func protectionText(p api.Peer) string {
	switch {
	case p.InsecurePlaintext:
		return "NONE (plaintext)"
	case p.DataPlane != "":
		return p.Protection + " (" + p.DataPlane + ")"
	}
	return p.Protection
}

// stateText colours a state.
func (w *ironwarp) stateText(s string) string {
	switch s {
	case api.PeerUp, api.ExportReady, "listening", "connected":
		return w.good(s)
	case api.PeerProblem, api.AttachStalled, api.AttachFailed, api.SessionFailing, api.PathGivenUp:
		return w.bad(s)
	case api.PeerPaused, api.ExportOpening, api.AttachWaiting, api.AttachConnecting:
		return w.warn(s)
	}
	return s
}

func orDash(s string) string { return cmp.Or(s, "-") }

func (w *ironwarp) peerShow(c *cli.Context) error {
	cl := w.client(c)
	p, err := cl.Peer(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	var sas []api.SA
	if p.IPsec != nil && !asJSON(c) {
		// A fault of strongSwan shows as the peer's problem.
		sas, _ = cl.SAs(c.Context)
		sas = slices.DeleteFunc(sas, func(s api.SA) bool { return s.Peer != p.Name })
	}
	return w.print(c, p, func() {
		line := func(name string, v any) { w.printf("%-15s %v\n", name, v) }
		line("name", w.bold(p.Name))
		line("state", w.stateText(p.State))
		line("address", p.Address)
		if p.Resolved != "" {
			line("resolved", p.Resolved)
		}
		if p.NameNote != "" {
			line("name", w.warn(p.NameNote))
		}
		line("local address", orDash(p.LocalAddress))
		line("port", p.Port)
		w.showTransport(p, line)
		line("protection", protectionText(p))
		if p.Protection == string(config.ProtectIPsec) {
			line("local id", orDash(p.LocalID))
			line("remote id", orDash(p.RemoteID))
			line("profile", p.Profile+", "+p.Mode+" mode")
			w.showAuth(p, line)
			line("child SAs", fmt.Sprintf("%d per direction%s", max(p.ChildSAs, 1), reapText(p.IdleReap)))
			if p.ISCSIPort != 0 {
				line("iscsi port", p.ISCSIPort)
			}
			if p.NVMePort != 0 {
				line("nvme port", p.NVMePort)
			}
			if p.Gateway != "" {
				line("gateway", w.bad(p.Gateway))
			}
		}
		if len(p.ProgramPorts) > 0 {
			line("program ports", strings.Join(p.ProgramPorts, " "))
		}
		for _, q := range p.Partitions {
			line("partition", fmt.Sprintf("%s, pkey %s, port %d, here %s, there %s: %s", q.Name, q.PKey, q.Port, q.Own, q.Theirs, w.stateText(q.State)))
		}
		line("crc", p.CRC)
		line("fpdu", p.FPDU)
		line("connections", p.Connections)
		line("streams now", p.Streams)
		line("may attach", orDash(strings.Join(p.Exports, " ")))
		line("declared at", p.Source)
		if i := p.IPsec; i != nil {
			w.showIPsec(i, line)
		}
		w.insecure(p)
		w.narrowPath(p)
		w.problem(p.Problem)
		for _, q := range p.Partitions {
			w.problem(q.Problem)
		}
		if len(sas) > 0 {
			w.printf("\n")
			w.saTable(sas)
		}
	})
}

func (w *ironwarp) showTransport(p api.Peer, line func(string, any)) {
	line("transport", transportText(p))
	if p.UDPPort != 0 {
		line("udp port", p.UDPPort)
	}
	if p.Transport == string(config.TransportAuto) {
		line("why", p.Carrier.Why)
	}
	for _, t := range p.Carrier.Tried {
		line("failed", w.warn(fmt.Sprintf("%s, tried again in %s: %s", t.Transport, ageText(t.AgainSeconds), t.Error)))
	}
	for i, s := range p.PathStates {
		name := fmt.Sprint(i + 1)
		if s.Path != cmp.Or(p.Resolved, p.Address) {
			name = s.Path
		}
		line("path "+name, w.pathText(s))
		w.problem(s.Problem)
	}
}

// pathText describes the state of a path.
func (w *ironwarp) pathText(s api.PathState) string {
	text := fmt.Sprintf("%s from %s, protection %s", s.Address, orDash(s.LocalAddress), w.stateText(s.Protection))
	switch s.Reachable {
	case api.PathReachable:
		text += ", " + w.good("answers") + " since " + ageText(s.SinceSeconds)
	case api.PathUnreachable:
		text += ", " + w.bad("does not answer") + " since " + ageText(s.SinceSeconds)
	}
	if s.Failures > 0 {
		text += fmt.Sprintf(", failed %d times", s.Failures)
	}
	return text
}

func (w *ironwarp) showAuth(p api.Peer, line func(string, any)) {
	if p.Auth != string(config.AuthCert) {
		line("secret file", p.PSKFile)
		return
	}
	expires := ""
	if !p.CertExpires.IsZero() {
		expires = ", valid until " + p.CertExpires.Local().Format("2006-01-02 15:04")
	}
	line("certificate", p.CertFile+expires)
	line("private key", p.KeyFile)
	line("authorities", strings.Join(p.CAFiles, " "))
	line("revocation", strings.Join(append([]string{p.Revocation}, append(p.CRLURIs, p.OCSPURIs...)...), " "))
}

func reapText(idle string) string {
	if idle == "" {
		return ""
	}
	return ", deleted when idle for " + idle
}

func (w *ironwarp) showIPsec(i *api.IPsec, line func(string, any)) {
	if l := i.Live; l != nil {
		line("authenticated", fmt.Sprintf("%s, %s ago by IKEv%d, %s", l.RemoteID, ageText(l.AgeSeconds), l.IKEVersion, l.IKE))
		if l.Gateway != "" {
			line("ESP ends at", w.bad(l.Gateway))
		}
	}
	guard := w.good("in place")
	if !i.Guarded {
		guard = w.bad("missing")
	}
	line("kernel guard", fmt.Sprintf("%s, repaired %d times, %d streams refused", guard, i.GuardRepairs, i.Refused))
	if i.Reloads > 0 {
		line("strongSwan", w.warn(fmt.Sprintf("had lost its configuration %d times, last at %s; it was loaded again", i.Reloads, i.ReloadedAt.Local().Format("2006-01-02 15:04:05"))))
	}
	line("SAs brought up", fmt.Sprintf("%d, of them %d that were lost; %d attempts failed", i.Initiations, i.Reinitiations, i.Failures))
	line("SAs deleted", fmt.Sprintf("%d: %d by the peer, %d on request, %d expired, %d idle; rekeyed %d", i.ChildDeletes, i.DeletedByPeer, i.DeletedHere, i.Expired, i.IdleReaps, i.Rekeys))
	line("outages", fmt.Sprintf("%d, the longest %.2f s", i.Outages, i.LongestOutageSeconds))
	if i.Impostors > 0 {
		line("impostors", w.bad(fmt.Sprintf("%d SAs of another identity were ended", i.Impostors)))
	}
}
