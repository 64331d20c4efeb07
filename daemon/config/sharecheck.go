package config

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/rtrs"
)

// notePosition records where something is written.
func (d *decoder) notePosition(c *Config, key string, read func(ast.Node)) func(ast.Node) {
	return func(n ast.Node) {
		if c.positions == nil {
			c.positions = map[string]Pos{}
		}
		c.positions[key] = d.pos(n)
		read(n)
	}
}

// positionOf is where something was written, the main file as a whole if nowhere.
func (c *Config) positionOf(key string) Pos {
	if at, ok := c.positions[key]; ok {
		return at
	}
	return Pos{File: c.Path}
}

// checkShares finds exports that trust more than sessions of exports do, and limits
// of one that are above those of all.
func checkShares(c *Config) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	limits := func(at Pos, what string, q Quota) {
		for _, w := range quotaWords {
			if have, all := *w.of(&q), *w.of(&c.Limits.Device); have > all {
				fail(at, fmt.Sprintf("%s may have %s %s, and all together %s", what, amountText(w.word, have), w.word, amountText(w.word, all)), "one cannot have more than all: lower it, or raise limits: {"+w.word+": ...}")
			}
		}
	}
	def := Default(c.Path)
	limits(c.positionOf("per_peer"), "a peer", c.Limits.PerPeer)
	for _, name := range ServiceNames() {
		if q := c.Services[name].Limits; q != def.Services[name].Limits {
			limits(c.positionOf(name), "service "+name, q)
		}
	}
	for _, e := range c.Exports {
		if of := c.ServiceTrust(ServiceExports); !of.Model().Permits(c.ExportTrust(e).Model()) {
			fail(e.Origin, fmt.Sprintf("export %s has trust %s, which permits more than %s, that of all exports", e.Name, e.Trust, of),
				"an export may only be stricter: set that here, or services: {exports: {trust: "+string(e.Trust)+"}} (RFC 5042 appendix C)")
		}
	}
	for _, p := range c.Peers {
		limits(p.Origin, "peer "+p.Name, p.Limits)
		if of := c.ServiceTrust(ServiceExports); p.OpenChunks && !rtrs.TrustsPeer(of.Model()) {
			fail(p.Origin, fmt.Sprintf("peer %s has always_invalidate: false, and the trust of exports is %s, which trusts no peer", p.Name, of),
				"remove that line, or set services: {exports: {trust: NS-RT}} (RFC 5042 appendices A and C)")
		}
	}
	for _, u := range c.ULPs {
		limits(u.Origin, "ULP "+u.Name, u.Limits)
	}
	return errs
}

func amountText(word string, n int64) string {
	if word == "memory" {
		return FormatSize(n) + " of"
	}
	return fmt.Sprint(n)
}
