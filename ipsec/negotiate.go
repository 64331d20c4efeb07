package ipsec

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// initiate asks charon to bring a child up, and explains a failure.
func (l *link) initiate(ctx context.Context, p *pad.Peer, child string, d time.Duration) error {
	m := charon.Section("ike", p.Name, "child", child, "timeout", millis(d), "loglevel", "1")
	_, log, err := l.control(ctx, d, "initiate", child, m)
	var refused *charon.CommandError
	if err == nil || !errors.As(err, &refused) {
		return err
	}
	return explainFailure(p, child, refused.Reason, log)
}

// terminate ends the SAs that which selects, and tells how many. With force it
// does not wait for the peer.
func (l *link) terminate(ctx context.Context, about string, which *vici.Message, force bool) (int, error) {
	return l.terminateWithin(ctx, l.cfg.CallTimeout, about, which, force)
}

func (l *link) terminateWithin(ctx context.Context, d time.Duration, about string, which *vici.Message, force bool) (int, error) {
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
		refused, isRefusal := asCommandError(err)
		switch {
		case isRefusal && strings.Contains(refused.Reason, "no matching"):
			return 0, nil
		case isRefusal && again && strings.Contains(refused.Reason, "terminating SA failed"):
			continue // so charon says when the peer has ended it at the same moment
		}
		return n, err
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func asCommandError(err error) (*charon.CommandError, bool) {
	var refused *charon.CommandError
	ok := errors.As(err, &refused)
	return refused, ok
}
