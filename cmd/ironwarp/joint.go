package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/invite"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// joint is what `peer invite` and `peer join` have in common: this host's side of the exchange.
type joint struct {
	w       *ironwarp
	c       *cli.Context
	cl      *api.Client
	main    string // of the configuration
	offline bool
	cfg     *config.Config
	name    string // of the peer here; "": the one that it gives itself
	side    invite.Side
	in      *bufio.Reader
	person  bool // answers at a terminal
	now     func() time.Time

	peer   api.Peer // once it is written
	secret config.KeptSecret
}

func (w *ironwarp) newJoint(c *cli.Context, name string) (*joint, error) {
	j := &joint{w: w, c: c, cl: w.client(c), name: name, in: newLineReader(w.stdin), person: isTerminal(w.stdin), now: time.Now}
	if name != "" {
		if err := config.CheckPeerName(name); err != nil {
			return nil, &usageError{msg: fmt.Sprintf("peer name %q %s", name, err)}
		}
	}
	var err error
	if j.main, j.offline, err = w.whichConfig(c, j.cl); err != nil {
		return nil, err
	}
	if j.cfg, err = config.Load(j.main, false); err != nil {
		return nil, err
	}
	if _, taken := j.cfg.Peer(name); taken {
		return nil, &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("there is a peer %s already", name), Fix: "give it another name here, or remove that one with `ironwarp peer rm " + name + "`"}
	}
	if id := c.String("local-id"); id != "" {
		if err := auth.CheckIdentity(id); err != nil {
			return nil, &usageError{msg: fmt.Sprintf("--local-id %s cannot be an IKE identity: %s", id, err)}
		}
	}
	if p := c.String("profile"); p != "" {
		if _, err := j.cfg.ProfileByName(p); err != nil {
			return nil, &usageError{msg: err.Error()}
		}
	}
	j.side = invite.Side{
		Own: invite.Host{Name: hostName(), Identity: c.String("local-id"), Profile: c.String("profile"), Transport: c.String("transport"),
			Port: j.cfg.ListenPort, UDPPort: j.cfg.ListenUDPPort},
		Check: j.check, Ask: j.ask, Write: j.write, Undo: j.undo,
	}
	return j, nil
}

// hostName is the name that this host gives itself.
func hostName() string {
	name, err := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	if err != nil || config.CheckPeerName(name) != nil {
		return "ironwarp"
	}
	return name
}

// say prints for people, beside JSON.
func (j *joint) say(format string, a ...any) {
	out := io.Writer(j.w.stdout)
	if asJSON(j.c) {
		out = j.w.stderr
	}
	fmt.Fprintf(out, format, a...)
}

// spec is the peer that the other host becomes here.
func (j *joint) spec(p invite.Partner) api.PeerSpec {
	s := api.PeerSpec{
		Name: cmp.Or(j.name, p.Name), Address: p.Address.String(), LocalID: j.side.Own.Identity, RemoteID: p.Identity,
		Profile: p.Profile, Transport: p.Transport, PSKFile: config.SecretPath(j.main, cmp.Or(j.name, p.Name)),
	}
	// The other host knows this one by the address of the connection.
	if a, err := listen.LocalAddr(p.Address); err != nil || a != p.LocalAddress {
		s.LocalAddress = p.LocalAddress.String()
	}
	if p.Port != j.cfg.ListenPort {
		s.Port = p.Port
	}
	if t := config.Transport(p.Transport); p.UDPPort != j.cfg.ListenUDPPort && (t == config.TransportSCTPUDP || t == config.TransportAuto) {
		s.UDPPort = p.UDPPort
	}
	return s
}

// check says why the other host cannot become a peer.
func (j *joint) check(p invite.Partner) error {
	if err := config.CheckPeerName(p.Name); j.name == "" && err != nil {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the other host gives itself the name %q, which no peer can have", p.Name), Fix: "give it another one here: `ironwarp peer join --name NAME`, `ironwarp peer invite NAME`"}
	}
	if p.Identity != "" && auth.CheckIdentity(p.Identity) != nil {
		return &api.Error{Code: api.CodeInvalid, Message: "the other host gives itself an identity that none can have in IKE"}
	}
	for _, q := range j.cfg.Peers {
		if q.Address == p.Address && q.Host == "" { // where a name is found keeps nobody out
			return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("peer %s of this host has the same address %s as the other host, %s", q.Name, p.Address, p.Name),
				Fix: fmt.Sprintf("`ironwarp ping %s` shows whether the hosts are linked already. If not, as when one lost power in the middle of an invitation: `ironwarp peer rm %s`, and invite it again", q.Name, q.Name)}
		}
	}
	if err := daemon.CheckPeer(j.main, j.spec(p)); err != nil {
		return fmt.Errorf("the other host, %s at %s, cannot be a peer: %w", p.Name, p.Address, err)
	}
	return nil
}

// ask shows the code, and who the other host is.
func (j *joint) ask(ctx context.Context, p invite.Partner, code string) (bool, error) {
	name := cmp.Or(j.name, p.Name)
	j.say("\n%s at %s has the token", p.Name, p.Address)
	if p.Identity != "" {
		j.say(", and will have the IKE identity %s", p.Identity)
	}
	if p.Profile != "" {
		j.say(", with the IPsec profile %s", p.Profile)
	}
	j.say(". It becomes peer %s.\nThe code on its screen has to be the same as this one. Compare them where nobody else can take part, by telephone for example:\n\n    %s\n\n", name, code)
	if chosen, err := j.cfg.ProfileByName(p.Profile); err == nil { // which check has found that it is
		for _, why := range chosen.Warnings() {
			j.say("%s\n\n", j.w.bad("INSECURE: profile "+p.Profile+": "+why))
		}
	}
	if j.c.Bool("yes") {
		j.say("confirmed unseen, by --yes\n")
		return true, nil
	}
	line, err := j.answer(ctx)
	if err != nil {
		j.say("\n")
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: standard input has ended without an answer", invite.ErrDeclined)
	}
	if isYes(line) {
		j.say("confirmed; waiting for the other host\n")
		return true, err
	}
	return false, err
}

// reaction is the least time in which somebody reads a code and compares it.
const reaction = time.Second

// answer asks whether the codes are the same. At a terminal the answer is a person's, who has seen the code: no line that was pasted with the
// token, whose text somebody else may have chosen.
func (j *joint) answer(ctx context.Context) (string, error) {
	if f, ok := j.w.stdin.(*os.File); ok && j.person {
		_, _ = j.in.Discard(j.in.Buffered())
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH)
	}
	for {
		j.say("Is it the same, and is this the host that you mean? [y/N] ")
		asked := j.now()
		line, err := j.readLine(ctx)
		if no := strings.ToLower(strings.TrimSpace(line)); err != nil || no == "n" || no == "no" || !j.person || j.now().Sub(asked) >= reaction {
			return line, err
		}
		j.say("\nThis answer came before anybody could compare the codes. ")
	}
}

func isYes(line string) bool {
	s := strings.ToLower(strings.TrimSpace(line))
	return s == "y" || s == "yes"
}

// write makes the other host a peer: its secret first, so that no peer is without one.
func (j *joint) write(ctx context.Context, p invite.Partner, secret auth.Secret) error {
	spec := j.spec(p)
	cfg, err := config.Load(j.main, false)
	if err != nil {
		return err
	}
	if _, taken := cfg.Peer(spec.Name); taken {
		return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("there is a peer %s already", spec.Name)}
	}
	if j.secret, err = config.KeepSecret(cfg, spec.Name, secret); err != nil {
		return err
	}
	spec.PSKFile = j.secret.Path
	if j.offline {
		j.peer.PeerSpec = spec
		j.peer.Source, err = daemon.AddPeer(j.main, spec)
	} else {
		j.peer, err = j.cl.AddPeer(ctx, spec)
	}
	if err != nil {
		return errors.Join(err, takeBack(j.secret, j.main, spec.Name, j.offline, err))
	}
	return nil
}

// undo takes the peer back that write has made.
func (j *joint) undo(p invite.Partner) error {
	name := j.spec(p).Name
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	var err error
	if j.offline {
		_, err = daemon.RemovePeer(j.main, name, true)
	} else {
		_, err = j.cl.RemovePeer(ctx, name, true)
	}
	if err != nil {
		return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("peer %s stays: %v", name, err), Fix: "remove it with `ironwarp peer rm " + name + "`"}
	}
	return j.secret.Undo()
}

// joined is what the commands print as JSON.
type joined struct {
	api.Peer
	// Unsure means that the other host may not have this one as a peer: the connection was lost with the last
	// message.
	Unsure bool `json:"unsure,omitempty"`
}

// end prints what has become of the exchange.
func (j *joint) end(r invite.Result, err error) error {
	if err != nil {
		return inviteError(err)
	}
	unsure := r.Outcome == invite.KeptUnsure
	return j.w.print(j.c, joined{j.peer, unsure}, func() {
		j.w.peerAdded(j.peer, j.secret.Path, false, j.offline)
		if unsure {
			j.w.printf("%s\n", j.w.warn("the connection was lost before the other host has said that it keeps this one as a peer"))
			j.w.printf("  see `ironwarp ping %s`; if it fails: `ironwarp peer rm %s`, and invite it again\n", j.peer.Name, j.peer.Name)
			return
		}
		j.w.printf("both hosts have each other as peers; `ironwarp ping %s` sets up the first SA\n", j.peer.Name)
	})
}

// inviteError says what to do about an exchange that has failed.
func inviteError(err error) error {
	var said *invite.AbortError
	for _, c := range []struct {
		is        error
		code, fix string
	}{
		{invite.ErrExpired, api.CodeTimeout, "make another one with `ironwarp peer invite`"},
		{invite.ErrUsed, api.CodeInUse, "if it was not you who used it, somebody else has the token: answer no on the inviter's screen, and make another one with `ironwarp peer invite`"},
		{invite.ErrUnknown, api.CodeNotFound, "the inviter waits with another token: copy the one that it shows now"},
		{invite.ErrUnreachable, api.CodeUnavailable, "does `ironwarp peer invite` still wait there, and may its port be reached through firewalls? An invitation ends when it was used, expires or is cancelled"},
		{invite.ErrTampered, api.CodeForbidden, "neither host has the other as a peer. Make another invitation, and find out who is between the hosts"},
		{invite.ErrTranslated, api.CodeInvalid, "neither host has the other as a peer: IKE identities and guards need the hosts' own addresses"},
		{invite.ErrLinkLocal, api.CodeInvalid, "neither host has the other as a peer: give both an address that is valid beyond the link, of the same family; `ip address` shows those of a host"},
		{invite.ErrDeclined, api.CodeForbidden, "if the codes differed, somebody is between the hosts and knows the token: make another one, and carry it another way"},
		{invite.ErrLost, api.CodeUnavailable, "make another invitation with `ironwarp peer invite`"},
	} {
		if errors.Is(err, c.is) {
			return &api.Error{Code: c.code, Message: err.Error(), Fix: c.fix}
		}
	}
	if errors.As(err, &said) {
		return &api.Error{Code: api.CodeForbidden, Message: err.Error(), Fix: "neither host has the other as a peer"}
	}
	return err
}
