package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/integration/siw"
)

func newGroup(variant string) *group {
	for _, v := range siw.Variants() {
		if v.Name() != variant {
			continue
		}
		g := &group{who: "siw connects", network: "IPv4", feature: v.Feature()}
		if v.Dial {
			g.who = "we connect"
		}
		if v.IPv6 {
			g.network = "IPv6"
		}
		return g
	}
	return &group{who: variant}
}

// document writes docs/interop.md.
func (r *report) document(w io.Writer) {
	fmt.Fprintf(w, documentHead, r.kernel, r.version, pings)
	row(w, "peer", "network", "feature", "result")
	row(w, "---", "---", "---", "---")
	for _, v := range r.rping {
		row(w, rpingRow(v)...)
	}
	fmt.Fprint(w, suiteHead)
	row(w, "connection", "network", "start-up", "cases as expected")
	row(w, "---", "---", "---", "---")
	for _, g := range r.variants() {
		row(w, g.who, g.network, g.feature, fmt.Sprintf("%d of %d", g.good, g.all))
	}
	fmt.Fprint(w, sectionHead)
	row(w, "RFC", "cases", "we act", "siw acts", "siw can't")
	row(w, "---", "---", "---", "---", "---")
	for _, s := range r.sections() {
		row(w, s.name, s.cases(), s.count(false), s.count(true), s.lacks())
	}
	if r.esp != nil {
		r.esp.document(w)
	}
	if r.sctp != nil {
		r.sctp.document(w)
	}
	for _, o := range r.outside {
		o.writeDocument(w)
	}
	fmt.Fprint(w, quirks)
	if t := r.terminates(); t != "" {
		fmt.Fprintf(w, terminateHead, t)
	}
	fmt.Fprintf(w, "%s\n%s.\n", open, r.summary())
}

func row(w io.Writer, cells ...string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }

// sectionResult is the result of the cases about one section of an RFC.
type sectionResult struct {
	name    string
	names   []string
	good    map[bool]int // by: siw acts
	all     map[bool]int
	lacking []string
}

// sections groups the suite's cases, including those that siw can't do.
func (r *report) sections() []*sectionResult {
	var all []*sectionResult
	byName := make(map[string]*sectionResult)
	for _, c := range siw.Cases() {
		name := section(c.RFC)
		s := byName[name]
		if s == nil {
			s = &sectionResult{name: name, good: make(map[bool]int), all: make(map[bool]int)}
			byName[name] = s
			all = append(all, s)
		}
		s.names = append(s.names, strings.TrimPrefix(c.Name, "fault/"))
		for _, siwActs := range []bool{false, true} {
			if f := siw.Lacking(c, siwActs); f != 0 && !slices.Contains(s.lacking, f.String()) {
				s.lacking = append(s.lacking, f.String())
			}
		}
	}
	for _, v := range r.suite {
		if s := byName[section(v.RFC)]; s != nil {
			s.all[v.SiwActs]++
			if v.Expected() {
				s.good[v.SiwActs]++
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *sectionResult) int { return strings.Compare(a.name, b.name) })
	return all
}

func (s *sectionResult) cases() string {
	const most = 4
	if len(s.names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(s.names[:most-1], ", "), len(s.names)-most+1)
	}
	return strings.Join(s.names, ", ")
}

func (s *sectionResult) count(siwActs bool) string {
	if s.all[siwActs] == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d", s.good[siwActs], s.all[siwActs])
}

func (s *sectionResult) lacks() string { return strings.Join(s.lacking, "; ") }

// terminates are the rows of what siw's Terminates say.
func (r *report) terminates() string {
	var b strings.Builder
	seen := make(map[string]bool)
	for _, v := range r.suite {
		for _, t := range v.Terminates {
			name := strings.TrimPrefix(v.Case, "fault/")
			if len(t) < 4 || seen[name] {
				continue
			}
			seen[name] = true
			row(&b, name, fmt.Sprintf("`% x`", t[:4]), siwMeans(t))
		}
	}
	return b.String()
}

// siwMeans is what siw means by a Terminate Control.
func siwMeans(t []byte) string {
	layers := []string{"RDMA", "DDP", "MPA"}
	layer, typ := int(t[0]&15), t[0]>>4
	if layer >= len(layers) {
		return "?"
	}
	return fmt.Sprintf("%s, type %d, code %#02x", layers[layer], typ, t[1])
}
