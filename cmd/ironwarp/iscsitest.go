package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) iscsiTestCommand() *cli.Command {
	return &cli.Command{
		Name: "test", Usage: "judge a target by the sentences of the RFCs", ArgsUsage: "[URL...]", Action: w.iscsiTest,
		Description: "URL is iscsi://HOST[:PORT]/IQN/LUN, or the same with iser:// or iser-streaming://. The target's disk is read;\n" +
			"it is written to with --dataloss only, and then any of it may be lost. Nobody is attacked without --hostile. Needs no daemon, except to reach\n" +
			"another host in ESP: its port has to be the iSCSI port of a peer. The exit status is 1\n" +
			"if a target has failed a case.",
		Flags: []cli.Flag{jsonFlag(),
			&cli.StringSliceFlag{Name: "only", Usage: "cases or groups: a `GLOB` of their names, may be given again"},
			&cli.BoolFlag{Name: "list", Usage: "list the cases, and test nothing"},
			&cli.BoolFlag{Name: "dataloss", Usage: "allow cases that write to the disk, and reset it"},
			&cli.BoolFlag{Name: "hostile", Usage: "allow attacks: some targets do not survive them, nor does the kernel of some hosts"},
			&cli.DurationFlag{Name: "soak", Usage: "`TIME` for which to write and read at random, and look at what is read; with --dataloss"},
			&cli.IntFlag{Name: "repeat", Value: 1, Usage: "`NUMBER` of times that each case runs"},
			&cli.Uint64Flag{Name: "seed", Usage: "`NUMBER` that what is random begins with (default: another each time)"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "`TIME` within which a target that is there answers"},
			&cli.StringFlag{Name: "initiator", Value: iscsitest.DefaultInitiator, Usage: "iSCSI `NAME` to log in by; further initiators have a digit behind it"},
			&cli.StringFlag{Name: "chap-user", Usage: "`NAME` in CHAP"},
			&cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with the secret, mode 0600"},
			&cli.StringFlag{Name: "target-secret-file", Usage: "`FILE` with the secret by which the target proves itself, mode 0600"},
			&cli.StringFlag{Name: "junit", Usage: "write JUnit's XML to `FILE`"},
			&cli.StringFlag{Name: "captures", Usage: "write a capture of each case that has not passed into `DIRECTORY`"},
			&cli.BoolFlag{Name: "trace", Usage: "print what was sent and received in each case that has not passed"},
			&cli.BoolFlag{Name: "insecure-plaintext", Usage: "reach other hosts in clear: for labs only"},
		},
	}
}

func (w *ironwarp) iscsiTest(c *cli.Context) error {
	if c.Bool("list") {
		return w.listCases(c)
	}
	if c.Args().Len() == 0 {
		return &usageError{msg: "no target is named", fix: "ironwarp iscsi test iscsi://HOST[:PORT]/IQN/LUN"}
	}
	o := iscsitest.Options{Only: c.StringSlice("only"), Repeat: c.Int("repeat"), Seed: c.Uint64("seed"), Timeout: c.Duration("timeout"), Soak: c.Duration("soak")}
	switch {
	case o.Timeout <= 0:
		return &usageError{msg: "--timeout has to be more than 0"}
	case o.Soak < 0:
		return &usageError{msg: "--soak is a time"}
	case o.Repeat < 1:
		return &usageError{msg: "--repeat has to be 1 or more"}
	case !c.IsSet("seed"):
		o.Seed = uint64(time.Now().UnixNano())
	}
	if c.Bool("dataloss") {
		o.Allow |= iscsitest.Data
	}
	if c.Bool("hostile") {
		o.Allow |= iscsitest.Hostile
	}
	if !iscsi.IsName(c.String("initiator")) {
		return &usageError{msg: fmt.Sprintf("--initiator %q is no iSCSI name", c.String("initiator")), fix: "iqn.2026-01.org.example:tester, for example"}
	}
	who, err := w.credentials(c)
	if err != nil {
		return err
	}
	var targets []iscsitest.Target
	for _, s := range c.Args().Slice() {
		t, err := iscsitest.ParseURL(s)
		if err != nil {
			return &usageError{msg: err.Error()}
		}
		t.Initiator, t.CHAP = c.String("initiator"), who
		if err := w.reaches(c, &t, &o); err != nil {
			return err
		}
		if n := len(iscsitest.Select(&t, &o)); n == 0 {
			return &usageError{msg: fmt.Sprintf("--only leaves no case for %s", t.URL()), fix: "ironwarp iscsi test --list"}
		}
		targets = append(targets, t)
	}
	var reports []*iscsitest.Report
	bad := false
	for i := range targets {
		r, err := w.judge(c, &targets[i], o)
		if r != nil {
			reports = append(reports, r)
			bad = bad || r.Bad()
		}
		if err != nil {
			return errors.Join(err, w.keepReports(c, reports))
		}
	}
	if err := w.keepReports(c, reports); err != nil {
		return err
	}
	if asJSON(c) {
		if err := w.printJSON(reports); err != nil {
			return err
		}
	}
	if bad {
		return silent(1)
	}
	return nil
}

// listCases prints the cases.
func (w *ironwarp) listCases(c *cli.Context) error {
	all := iscsitest.Cases()
	return w.print(c, all, func() {
		for _, x := range all {
			w.printf("%s\n    %s, %s: %s\n", x.ID, x.Level, x.Source, x.Says)
		}
	})
}

// credentials are those of CHAP that the flags name, nil if they name none.
func (w *ironwarp) credentials(c *cli.Context) (*chap.Credentials, error) {
	if (c.String("chap-user") == "") != (c.String("chap-secret-file") == "") {
		return nil, &usageError{msg: "--chap-user and --chap-secret-file belong together"}
	}
	if c.String("chap-user") == "" {
		if c.IsSet("target-secret-file") {
			return nil, &usageError{msg: "a target proves itself only to who does: --target-secret-file needs --chap-user"}
		}
		return nil, nil
	}
	who := &chap.Credentials{Name: c.String("chap-user")}
	for file, secret := range map[string]*[]byte{c.String("chap-secret-file"): &who.Secret, c.String("target-secret-file"): &who.OwnSecret} {
		if file == "" {
			continue
		}
		s, err := auth.LoadSecret(file)
		if err != nil {
			return nil, err
		}
		*secret = s.Reveal()
	}
	return who, nil
}

// reaches says how a target is reached, as mayReach has it.
func (w *ironwarp) reaches(c *cli.Context, t *iscsitest.Target, o *iscsitest.Options) error {
	ctx, cancel := context.WithTimeout(c.Context, o.Timeout)
	defer cancel()
	at, err := w.mayReach(ctx, c, t.Address)
	if err != nil {
		return err
	}
	t.Address = at.String()
	if o.Transport == nil {
		o.Transport = &transport.Config{Protector: transport.LoopbackOnly()}
	}
	if a := at.Addr(); !a.IsLoopback() {
		o.Transport = &transport.Config{Protector: transport.PerPeer(func(netip.Addr) (transport.Protector, error) {
			return transport.Plaintext(slog.New(slog.DiscardHandler), a), nil
		})}
	}
	return nil
}

// mayReach returns the address of a target: one within this host, one whose port the daemon guards, or any if going there
// in clear is allowed.
func (w *ironwarp) mayReach(ctx context.Context, c *cli.Context, address string) (at netip.AddrPort, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return at, &usageError{msg: err.Error()}
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return at, &usageError{msg: err.Error()}
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return at, fmt.Errorf("the target's host %s is not known: %w", host, err)
	}
	at = netip.AddrPortFrom(all[0].Unmap(), uint16(n))
	if at.Addr().IsLoopback() || c.Bool("insecure-plaintext") || w.guarded(ctx, c, at) {
		return at, nil
	}
	return at, &usageError{msg: fmt.Sprintf("%s is another host, and would be reached in clear: this has no IPsec, and no daemon here guards port %d of it", at.Addr(), n),
		fix: fmt.Sprintf("`ironwarp peer set --iscsi-port %d PEER` on both hosts has the port in ESP; --insecure-plaintext goes without, for a lab", n)}
}

// guarded reports whether the daemon of this host has the kernel drop what is not in ESP between here and a port of an
// address, whoever sends it.
func (w *ironwarp) guarded(ctx context.Context, c *cli.Context, at netip.AddrPort) bool {
	peers, err := w.client(c).Peers(ctx)
	return err == nil && slices.ContainsFunc(peers, func(p api.Peer) bool {
		a, err := netip.ParseAddr(cmp.Or(p.Resolved, p.Address))
		return err == nil && netip.AddrPortFrom(a.Unmap(), p.ISCSIPort) == at && p.IPsec != nil && p.IPsec.Guarded
	})
}

// judge tests one target, and prints each result.
func (w *ironwarp) judge(c *cli.Context, t *iscsitest.Target, o iscsitest.Options) (*iscsitest.Report, error) {
	p := &progress{w: w}
	began := time.Now()
	captures := 0
	var kept error
	o.Progress = func(x *iscsitest.Result, done, all int) {
		if dir := c.String("captures"); isWorthTelling(x) && dir != "" && len(x.Trace) > 0 {
			captures++
			kept = errors.Join(kept, keepCapture(filepath.Join(dir, fmt.Sprintf("%03d-%s-%s.pcapng", done, x.Over, x.Case)), x, began))
		}
		w.tell(c, p, x, done, all)
	}
	if !asJSON(c) {
		w.printf("%s, seed %d\n", t.URL(), o.Seed)
	}
	r, err := iscsitest.Run(c.Context, *t, o)
	p.end()
	if r != nil && !asJSON(c) {
		w.printf("%s, in %.1f s\n", r.Summary(), time.Since(began).Seconds())
		if captures > 0 {
			w.printf("%d captures are in %s\n", captures, c.String("captures"))
		}
	}
	return r, errors.Join(err, kept)
}

func isWorthTelling(x *iscsitest.Result) bool {
	return x.Verdict != iscsitest.Pass && x.Verdict != iscsitest.Skip
}

// tell prints a result to people, if it is worth it, and how far the tests are.
func (w *ironwarp) tell(c *cli.Context, p *progress, x *iscsitest.Result, done, all int) {
	if asJSON(c) {
		return
	}
	if w.errTerminal {
		p.show(fmt.Sprintf("%d of %d: %s", done, all, x.Case))
	}
	if !isWorthTelling(x) {
		return
	}
	p.end()
	p.last = ""
	w.printf("%s\n", w.verdict(x))
	if c.Bool("trace") {
		w.printf("%s\n", x.Words())
	}
}

// verdict is a result in words, with its verdict marked.
func (w *ironwarp) verdict(x *iscsitest.Result) string {
	if x.Verdict.Bad() {
		return w.bad(x.Line())
	}
	return w.warn(x.Line())
}

func keepCapture(path string, x *iscsitest.Result, began time.Time) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("a capture could not be kept: %w", err)
	}
	return errors.Join(x.WriteCapture(f, began), f.Close())
}

// keepReports writes the file of --junit.
func (w *ironwarp) keepReports(c *cli.Context, reports []*iscsitest.Report) error {
	path := c.String("junit")
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("the report could not be kept: %w", err)
	}
	return errors.Join(iscsitest.WriteJUnit(f, reports...), f.Close())
}
