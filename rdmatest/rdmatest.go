// Package rdmatest judges another implementation of RDMA by the conformance suite: an adapter or soft-iWARP behind Linux'
// verbs, on this host or another, whose end is the program of package iwarptest/agent. Our end is a
// queue pair of package verbs. Verdicts and reports are those of package iscsitest.
package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/iwarptest/agent"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Case is a case of the conformance suite in one direction.
type Case struct {
	ID     string `json:"id"`     // manner.name.who, as in dial.read.peer-acts
	Source string `json:"source"` // what it proves: the RFC and its section
	Says   string `json:"sentence"`

	c        conformance.Case
	dial     bool
	peerActs bool
	lacks    conformance.Feature // that the agent has not
}

// Cases are all cases: with streams that we open, and with streams that the peer opens; in each with our end as the one
// that acts, and with the peer's.
func Cases() (all []Case) {
	for _, dial := range []bool{true, false} {
		for _, c := range conformance.Without(conformance.Cases(), conformance.SharedReceives) {
			for _, peerActs := range []bool{false, true} {
				x := Case{Source: c.RFC, c: c, dial: dial, peerActs: peerActs}
				manner, who, needs := "listen", "we-act", c.B
				if dial {
					manner = "dial"
				}
				if peerActs {
					who, needs = "peer-acts", c.A
				}
				x.lacks = needs &^ agent.Features
				x.ID = strings.Join([]string{manner, strings.NewReplacer(" ", "-", "/", ".").Replace(c.Name), who}, ".")
				x.Says = c.Name + " does at both ends what is said there, and nothing else is changed, completed or lost"
				all = append(all, x)
			}
		}
	}
	return all
}

// Options say how a peer is judged.
type Options struct {
	// Agent is the command that runs the agent, each time anew; it may lead to another host.
	Agent func() *exec.Cmd
	Peer  netip.Addr // the address of the agent's device
	Local netip.Addr // ours, to which the peer connects
	Port  uint16     // of TCP, at both ends; the next is used as well
	NoCRC bool       // our end asks for no CRC
	Only  []string   // globs, as of path.Match, of the IDs of cases; none: all
	// Transport says how streams are protected.
	Transport *transport.Config
	// Progress is called after each case, with how many there are.
	Progress func(r *iscsitest.Result, done, all int)
}

// Errors of Run.
var (
	ErrOptions = errors.New("rdmatest: wrong use")
	ErrAgent   = errors.New("rdmatest: the agent does not do its part")
)

// Select returns the cases that the options name. It fails with ErrOptions for a glob that is none.
func Select(only []string) ([]Case, error) {
	for _, glob := range only {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrOptions, glob, err)
		}
	}
	return slices.DeleteFunc(Cases(), func(c Case) bool {
		return len(only) > 0 && !slices.ContainsFunc(only, func(glob string) bool { ok, _ := path.Match(glob, c.ID); return ok })
	}), nil
}

// Run judges a peer. It fails with ErrOptions, with ErrAgent if the agent cannot be started or does not listen, and with
// ctx's error between two cases; the report says how far it has come.
func Run(ctx context.Context, o Options) (*iscsitest.Report, error) {
	cases, err := Select(o.Only)
	if err != nil {
		return nil, err
	}
	report := &iscsitest.Report{Target: fmt.Sprintf("rdma://%v", netip.AddrPortFrom(o.Peer, o.Port)), Results: []iscsitest.Result{}}
	for _, dial := range []bool{true, false} {
		mine := slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return c.dial != dial })
		if len(mine) == 0 {
			continue
		}
		if err := o.run(ctx, dial, mine, func(x iscsitest.Result) {
			report.Results = append(report.Results, x)
			if o.Progress != nil {
				o.Progress(&x, len(report.Results), len(cases))
			}
		}); err != nil {
			return report, err
		}
	}
	return report, nil
}

// run runs the cases of one manner.
func (o *Options) run(ctx context.Context, dial bool, cases []Case, note func(iscsitest.Result)) (err error) {
	a, err := agent.Start(o.Agent())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAgent, err)
	}
	defer func() {
		switch serr := a.Stop(); {
		case serr != nil && err == nil:
			err = fmt.Errorf("%w: %w", ErrAgent, serr)
		case serr != nil:
			err = fmt.Errorf("%w (%w)", err, serr)
		}
	}()
	port := o.Port
	if !dial {
		port++
	}
	cfg := agent.Config{Agent: a, Dial: dial, Theirs: netip.AddrPortFrom(o.Peer, port), Ours: netip.AddrPortFrom(o.Local, port), Transport: o.Transport, Setup: verbs.Setup{NoCRC: o.NoCRC, ClientServer: dial}}
	var streams *agent.Streams
	whole := newBench(ctx)
	whole.run(func() { streams = agent.Open(whole, cfg) })
	defer whole.cleanUp()
	if whole.Failed() {
		return fmt.Errorf("%w: %s", ErrAgent, whole.first())
	}
	for i := range cases {
		if err := ctx.Err(); err != nil {
			return err
		}
		note(cases[i].judge(ctx, a, streams))
	}
	return nil
}

// judge runs one case.
func (c *Case) judge(ctx context.Context, a *agent.Process, streams *agent.Streams) iscsitest.Result {
	x := iscsitest.Result{Case: c.ID, Over: iscsitest.RDMA, Source: c.Source, Says: c.Says, Tries: 1}
	if c.lacks != 0 {
		x.Verdict, x.Found = iscsitest.Skip, "the agent lacks "+c.lacks.String()
		return x
	}
	begin := time.Now()
	t := newBench(ctx)
	t.run(func() { c.c.Run(t, streams.Connect, c.peerActs) })
	t.cleanUp()
	x.Took = time.Since(begin)
	switch {
	case a.Ended():
		x.Verdict, x.Found = iscsitest.TargetDown, "the agent has ended: "+t.first()
	case t.Failed():
		x.Verdict, x.Found = iscsitest.Fail, t.first()
	case t.Skipped():
		x.Verdict, x.Found = iscsitest.Skip, t.first()
	default:
		return x
	}
	for _, line := range append(t.said(), strings.Split(a.Lines(), "\n")...) {
		x.Trace = append(x.Trace, iscsitest.Event{At: x.Took, Conn: 1, Note: line})
	}
	return x
}
