package ipsec

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"
)

// initiate asks charon to bring a child up, and explains a failure.
func (l *link) initiate(ctx context.Context, p *Peer, child string, d time.Duration) error {
	m := section("ike", p.Name, "child", child, "timeout", millis(d), "loglevel", "1")
	_, log, err := l.control(ctx, d, "initiate", child, m)
	var refused *CommandError
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
	set(which, "timeout", millis(d))
	set(which, "loglevel", "-1")
	if force {
		set(which, "force", "yes")
	}
	answer, _, err := l.control(ctx, d, "terminate", about, which)
	n := 0
	if answer != nil {
		n, _ = strconv.Atoi(str(answer, "terminated"))
	}
	var refused *CommandError
	if errors.As(err, &refused) && strings.Contains(refused.Reason, "no matching") {
		return 0, nil
	}
	return n, err
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// explainFailure turns charon's words about a failed attempt into what they mean
// here.
func explainFailure(p *Peer, child, reason string, log []string) error {
	e := &NegotiationError{Peer: p.Name, Child: child, Kind: ErrNegotiation, Log: append(log, reason)}
	said := func(words ...string) bool {
		for _, line := range e.Log {
			for _, w := range words {
				if strings.Contains(line, w) {
					return true
				}
			}
		}
		return false
	}
	switch {
	case said("AUTHENTICATION_FAILED", "AUTH_FAILED", "MAC mismatched", "no shared key found"):
		e.Kind = ErrAuthFailed
		e.Advice = fmt.Sprintf("the pre-shared keys differ, or the peer expects other identities (here it is %q, and the peer is expected to be %q); compare both hosts' peer settings", p.LocalID, p.RemoteID)
	case said("TS_UNACCEPT"):
		e.Kind = ErrTrafficSelectors
		e.Advice = fmt.Sprintf("the peer does not have port %d between %v and %v as its link to this host; compare the ports and addresses on both hosts", p.Port, p.Remote, p.Local)
	case said("NO_PROPOSAL_CHOSEN", "NO_PROP"):
		e.Kind = ErrNoProposal
		e.Advice = fmt.Sprintf("the peer takes none of the algorithms of profile %q, does not know %v as a peer, or has no ESP; compare the profiles, add this host as a peer there, and run `ironwarp doctor` there", p.Profile.Name, p.Local)
	case said("INVAL_SYN", "INVALID_SYNTAX", "decryption failed"):
		e.Kind = ErrAuthFailed
		e.Advice = "the peer's answer could not be decrypted: the pre-shared keys differ"
	case said("unable to install", "unable to add", "received netlink error", "unsupported by the kernel"):
		e.Advice = "this host could not install the SA; the data plane lacks ESP or an algorithm of the profile; `ironwarp doctor` tells"
	case said("giving up after", "not responding", "not established after", "network unreachable", "Network is unreachable", "error writing to socket"):
		e.Kind = ErrUnreachable
		e.Advice = fmt.Sprintf("no answer from %v on UDP ports 500 and 4500; is that host up, does strongSwan run there, does a firewall let IKE and ESP through?", p.Remote)
	}
	return e
}
