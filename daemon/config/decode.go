package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/ironwarp/ironwarp/internal/spelling"
)

// decoder walks the syntax tree of one file and collects its faults. It knows
// YAML's mappings, sequences and scalars and nothing else: anchors, aliases and
// tags are refused, so that a file means what it shows.
type decoder struct {
	file string
	base string // directory that relative file names count from
	errs Errors
}

// fields maps each allowed key to the function that reads its value.
type fields map[string]func(ast.Node)

// parse returns the root of the only document of a file, nil when it is empty.
func (d *decoder) parse(data []byte) ast.Node {
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		pos, msg := Pos{File: d.file}, err.Error()
		if se, ok := err.(interface {
			GetToken() *token.Token
			GetMessage() string
		}); ok {
			msg = se.GetMessage()
			if t := se.GetToken(); t != nil && t.Position != nil {
				pos.Line, pos.Column = t.Position.Line, t.Position.Column
			}
		}
		d.errs = append(d.errs, &Error{Pos: pos, Msg: "not YAML: " + msg})
		return nil
	}
	var root ast.Node
	for _, doc := range f.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment {
			continue
		}
		if root != nil {
			d.fail(doc.Body, "a second document in one file", "put it into a file of its own")
			break
		}
		root = doc.Body
	}
	return root
}

func (d *decoder) pos(n ast.Node) Pos {
	p := Pos{File: d.file}
	t := n.GetToken()
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		t = m.Values[0].Key.GetToken()
	}
	if t != nil && t.Position != nil {
		p.Line, p.Column = t.Position.Line, t.Position.Column
	}
	return p
}

func (d *decoder) fail(n ast.Node, msg, fix string) {
	d.errs = append(d.errs, &Error{Pos: d.pos(n), Msg: msg, Fix: fix})
}

// checkWhole reports the fault of a declaration as a whole, if its parts have none: there were faults
// before it was read.
func (d *decoder) checkWhole(n ast.Node, faults int, fault func() (msg, fix string)) {
	if len(d.errs) > faults {
		return
	}
	if msg, fix := fault(); msg != "" {
		d.fail(n, msg, fix)
	}
}

// mapping reads a mapping whose keys are those of f; what names it in messages.
func (d *decoder) mapping(n ast.Node, what string, f fields) {
	allowed := slices.Sorted(maps.Keys(f))
	d.keys(n, what, joinWords(allowed), func(key *ast.StringNode, v ast.Node) {
		if read, ok := f[key.Value]; ok {
			read(v)
			return
		}
		fix := "allowed here: " + joinWords(allowed)
		if near := spelling.Closest(key.Value, allowed); near != "" {
			fix = fmt.Sprintf("did you mean %q? %s", near, fix)
		}
		d.fail(key, fmt.Sprintf("unknown key %q in %s", key.Value, what), fix)
	})
}

// entries reads a mapping whose keys are names of the writer's choice.
func (d *decoder) entries(n ast.Node, what string, entry func(name *ast.StringNode, v ast.Node)) {
	d.keys(n, what, "a name and what it stands for", entry)
}

// onlyKey reads one key of a mapping and ignores all others, faults included.
func (d *decoder) onlyKey(n ast.Node, key string, read func(ast.Node)) {
	faults := len(d.errs)
	var found ast.Node
	d.keys(n, "", "", func(k *ast.StringNode, v ast.Node) {
		if k.Value == key {
			found = v
		}
	})
	d.errs = d.errs[:faults]
	if found != nil {
		read(found)
	}
}

// keys reads each key of a mapping.
func (d *decoder) keys(n ast.Node, what, allowed string, entry func(key *ast.StringNode, v ast.Node)) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	case *ast.NullNode:
		return
	default:
		d.fail(n, fmt.Sprintf("%s is %s", what, kind(n)), "write it as a mapping of "+allowed)
		return
	}
	for _, v := range values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			d.fail(v.Key, fmt.Sprintf("key %s of %s is not a plain name", v.Key.GetToken().Value, what), "allowed here: "+allowed)
			continue
		}
		entry(key, v.Value)
	}
}

// sequence reads each item of a sequence.
func (d *decoder) sequence(n ast.Node, what string, item func(ast.Node)) {
	switch s := n.(type) {
	case *ast.SequenceNode:
		for _, v := range s.Values {
			item(v)
		}
	case *ast.NullNode:
	default:
		d.fail(n, fmt.Sprintf("%s is %s", what, kind(n)), "write it as a list: [a, b] or one line with a dash each")
	}
}

func (d *decoder) str(what string, dst *string, check func(string) error) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.StringNode)
		if !ok {
			fix := "write a string"
			if scalar, ok := n.(ast.ScalarNode); ok {
				fix = fmt.Sprintf("put it in quotes: %q", scalar.GetToken().Value)
			}
			d.fail(n, fmt.Sprintf("%s is %s", what, kind(n)), fix)
			return
		}
		if check != nil {
			if err := check(s.Value); err != nil {
				d.fail(n, fmt.Sprintf("%s %q %s", what, s.Value, err), "")
				return
			}
		}
		*dst = s.Value
	}
}

func (d *decoder) enum(what string, set func(string), allowed ...string) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.StringNode)
		if !ok || !slices.Contains(allowed, s.Value) {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), "allowed: "+joinWords(allowed))
			return
		}
		set(s.Value)
	}
}

func (d *decoder) boolean(what string, dst *bool) func(ast.Node) {
	return func(n ast.Node) {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), "allowed: true, false")
			return
		}
		*dst = b.Value
	}
}

func (d *decoder) integer(what string, lo, hi uint64, set func(uint64)) func(ast.Node) {
	return func(n ast.Node) {
		fix := fmt.Sprintf("allowed: %d to %d", lo, hi)
		i, ok := n.(*ast.IntegerNode)
		if !ok {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), fix)
			return
		}
		var v uint64
		switch x := i.Value.(type) {
		case uint64:
			v = x
		case int64:
			if x < 0 {
				d.fail(n, fmt.Sprintf("%s is %d", what, x), fix)
				return
			}
			v = uint64(x)
		}
		if v < lo || v > hi {
			d.fail(n, fmt.Sprintf("%s is %d", what, v), fix)
			return
		}
		set(v)
	}
}

// size reads an amount of memory: a number of bytes or one with KiB, MiB, GiB.
func (d *decoder) size(what string, lo int64, set func(int64)) func(ast.Node) {
	return func(n ast.Node) {
		text := n.GetToken().Value
		v, err := ParseSize(text)
		if err != nil || v < lo {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), fmt.Sprintf("allowed: %s or more, such as 512MiB or 1GiB", FormatSize(lo)))
			return
		}
		set(v)
	}
}

func (d *decoder) addr(what string, set func(netip.Addr)) func(ast.Node) {
	return d.address(what, ParseAddr, "192.0.2.7", set)
}

// listenAddr reads an address of this host, or 0.0.0.0 or :: for all.
func (d *decoder) listenAddr(set func(netip.Addr)) func(ast.Node) {
	return d.address("listen address", func(s string) (netip.Addr, error) {
		if a, err := netip.ParseAddr(s); err == nil && a.IsUnspecified() && a.Zone() == "" {
			return a, nil
		}
		return ParseAddr(s)
	}, "192.0.2.7, or 0.0.0.0 for all", set)
}

func (d *decoder) address(what string, parse func(string) (netip.Addr, error), such string, set func(netip.Addr)) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.StringNode)
		var a netip.Addr
		var err error
		if ok {
			a, err = parse(s.Value)
		}
		if !ok || err != nil {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), "write an IPv4 or IPv6 address, such as "+such+"; "+namesHint(what))
			return
		}
		set(a)
	}
}

// duration reads a time span such as 90s or 1h30m.
func (d *decoder) duration(what string, lo, hi time.Duration, set func(time.Duration)) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.StringNode)
		var v time.Duration
		var err error
		if ok {
			v, err = time.ParseDuration(s.Value)
		}
		if !ok || err != nil || v < lo || v > hi {
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), fmt.Sprintf("allowed: %s to %s, such as 90s, 10m or 1h30m", FormatDuration(lo), FormatDuration(hi)))
			return
		}
		set(v)
	}
}

// strings reads a list of strings, which replaces what dst has.
func (d *decoder) strings(what string, dst *[]string, check func(string) error) func(ast.Node) {
	return func(n ast.Node) {
		*dst = []string{}
		d.sequence(n, what, appendTo(dst, func(s *string) func(ast.Node) { return d.str(what, s, check) }))
	}
}

// paths reads a list of file names; a single one may have no brackets.
func (d *decoder) paths(what string, dst *[]string) func(ast.Node) {
	return d.oneOrMore(what, dst, func(s *string) func(ast.Node) { return d.path(what, s) })
}

// uris reads a list of URIs; a single one may have no brackets.
func (d *decoder) uris(what string, dst *[]string, check func(string) error) func(ast.Node) {
	return d.oneOrMore(what, dst, func(s *string) func(ast.Node) { return d.str(what, s, check) })
}

// oneOrMore reads a list of what reader reads; a single one may have no brackets.
func (d *decoder) oneOrMore(what string, dst *[]string, reader func(*string) func(ast.Node)) func(ast.Node) {
	item := appendTo(dst, reader)
	return func(n ast.Node) {
		if _, one := n.(*ast.StringNode); one {
			item(n)
			return
		}
		d.sequence(n, what, item)
	}
}

// appendTo appends to a list what reader reads, unless that has a fault.
func appendTo(dst *[]string, reader func(*string) func(ast.Node)) func(ast.Node) {
	return func(n ast.Node) {
		var s string
		if reader(&s)(n); s != "" {
			*dst = append(*dst, s)
		}
	}
}

// path reads a file name.
func (d *decoder) path(what string, dst *string) func(ast.Node) {
	return func(n ast.Node) {
		var s string
		d.str(what, &s, checkPath)(n)
		if s == "" {
			return
		}
		if !filepath.IsAbs(s) {
			s = filepath.Join(d.base, s)
		}
		*dst = filepath.Clean(s)
	}
}

// kind is what a node is, in words.
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "empty"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "a YAML anchor or alias, which is not supported here"
	case *ast.TagNode:
		return "a YAML tag, which is not supported here"
	}
	return "not understood"
}

// nodeText is the node's text if it is a scalar, otherwise its kind.
func nodeText(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return fmt.Sprintf("%q", n.GetToken().Value)
	}
	return kind(n)
}

func joinWords(s []string) string { return strings.Join(s, ", ") }
