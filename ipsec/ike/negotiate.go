package ike

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// Initiate asks charon to bring a child up, and explains a failure.
func (l *Session) Initiate(ctx context.Context, p *pad.Peer, child string, d time.Duration) error {
	m := charon.Section("ike", p.Name, "child", child, "timeout", millis(d), "loglevel", "1")
	_, log, err := l.control(ctx, d, "initiate", child, m)
	if refused, ok := errors.AsType[*charon.CommandError](err); ok {
		return negotiation.Explain(p, child, refused.Reason, log)
	}
	return err
}

// Terminate ends the SAs that which selects, and returns how many there were. With
// force it does not wait for the peer. It fails as charon.Conn.Call does.
func (l *Session) Terminate(ctx context.Context, about string, which *vici.Message, force bool) (int, error) {
	return l.TerminateWithin(ctx, l.timeout, about, which, force)
}

// TerminateWithin is Terminate with a patience of its own. It fails as that does.
func (l *Session) TerminateWithin(ctx context.Context, d time.Duration, about string, which *vici.Message, force bool) (int, error) {
	charon.Set(which, "timeout", millis(d))
	charon.Set(which, "loglevel", "-1")
	if force {
		charon.Set(which, "force", "yes")
	}
	for again := force; ; again = false {
		answer, _, err := l.control(ctx, d, "terminate", about, which)
		n := 0
		if answer != nil {
			n, _ = strconv.Atoi(charon.Str(answer, "terminated"))
		}
		switch {
		case charon.Refused(err, noMatching):
			return 0, nil
		case again && charon.Refused(err, "terminating SA failed"):
			continue // so charon says when the peer has ended it at the same moment
		}
		return n, err
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Rekey has the SAs that which selects rekeyed, and returns how many there were. It
// fails as charon.Conn.Call does; none is no error.
func (l *Session) Rekey(ctx context.Context, about string, which *vici.Message) (int, error) {
	answer, err := l.ask(ctx, "rekey", about, which)
	if err == nil {
		return int(charon.Num(answer, "matches")), nil
	}
	if charon.Refused(err, noMatching) {
		err = nil
	}
	return 0, err
}

// noMatching is what charon says of a command that found no SA.
const noMatching = "no matching"
