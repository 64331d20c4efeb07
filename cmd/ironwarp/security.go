package main

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func (w *ironwarp) securityCommand() *cli.Command {
	return &cli.Command{
		Name: "security", Usage: "how this host meets RFC 5042, the security of RDMA",
		Subcommands: []*cli.Command{{
			Name: "audit", Usage: "each requirement: how it is met, what weakens it here, and what to do",
			Description: "It reads the running daemon and changes nothing. Exit status 1: something is not met.",
			Flags: remote(
				&cli.BoolFlag{Name: "weak", Usage: "show only those that are weakened or not met"},
			),
			Action: w.audit,
		}},
	}
}

func (w *ironwarp) audit(c *cli.Context) error {
	a, err := w.client(c).Audit(c.Context)
	if err != nil {
		return err
	}
	all := a.Requirements
	if c.Bool("weak") {
		a.Requirements = nil
		for _, r := range all {
			if r.State != api.AuditMet {
				a.Requirements = append(a.Requirements, r)
			}
		}
	}
	err = w.print(c, a, func() { w.auditPage(a, all) })
	if err == nil && a.State == api.AuditNotMet {
		return silent(1)
	}
	return err
}

// auditWidth is for terminals of 120 columns.
const (
	auditIndent = 32
	auditWidth  = 120 - auditIndent
)

func (w *ironwarp) auditPage(a api.Audit, all []api.Requirement) {
	w.printf("%s\n", w.bold("STATE     ID   RFC 5042         REQUIREMENT, AND HOW IT IS MET"))
	for _, r := range a.Requirements {
		w.printf("%s  %-3s  %-15s  %s\n", w.auditState(r.State), r.ID, r.Section, hanging(r.Text, 0))
		w.printf("%*s%s\n", auditIndent, "", hanging(r.How, 0))
		for _, k := range r.Weak {
			w.printf("%*s%s\n", auditIndent, "", hanging(w.warn(k.Setting)+": "+k.Effect, 2))
			w.printf("%*s  do: %s\n", auditIndent, "", hanging(k.Fix, 6))
		}
	}
	n := map[string]int{}
	for _, r := range all {
		n[r.State]++
	}
	w.printf("\n%d requirements: %d met, %d weakened, %d not met.\n", len(all), n[api.AuditMet], n[api.AuditWeakened], n[api.AuditNotMet])
}

// auditState pads before it paints, so that columns stay aligned.
func (w *ironwarp) auditState(state string) string {
	padded := (state + "        ")[:8]
	switch state {
	case api.AuditMet:
		return w.good(padded)
	case api.AuditWeakened:
		return w.warn(padded)
	}
	return w.bad(padded)
}

// hanging wraps s behind auditIndent, lines after the first by so much more.
func hanging(s string, more int) string {
	lines := strings.Split(text.WrapSoft(s, auditWidth-more), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n"+strings.Repeat(" ", auditIndent+more))
}
