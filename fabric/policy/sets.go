package policy

import "slices"

// set is the source or the target of a rule, not yet understood.
type set struct {
	names, minus    []token
	all, complement bool  // * and ~
	self            token // its kind is tokenEnd unless the set has it
}

// only reads a set of one name, which may be repeated.
func (p *parser) only(name, what string) bool {
	if p.tok.kind == '*' || p.tok.kind == '~' {
		p.fail(p.tok.pos, ErrBeyondSubset, "%s %v; write %s", what, p.tok, name)
		p.skip()
		return false
	}
	var s set
	if !p.set(&s, false, what+", "+name) {
		return false
	}
	for _, t := range slices.Concat(s.names, s.minus, []token{s.self}) {
		if t.kind != tokenEnd && t.text != name {
			p.fail(t.pos, ErrBeyondSubset, "%s %s; the only one is %s", what, t.text, name)
			p.skip()
			return false
		}
	}
	if len(s.minus) > 0 {
		p.fail(s.minus[0].pos, ErrBeyondSubset, "%s with a name that is left out; write %s", what, name)
		p.skip()
		return false
	}
	return true
}

// set reads names of types and attributes (policy_parse.y: names): a name, a - b, a set in
// braces, and after neverallow also *, and ~ in front of a name or of braces.
func (p *parser) set(s *set, never bool, what string) bool {
	if p.tok.kind == '*' || p.tok.kind == '~' {
		if !never {
			p.fail(p.tok.pos, nil, "%v is possible in neverallow rules only", p.tok)
			p.skip()
			return false
		}
		s.all, s.complement = p.tok.kind == '*', p.tok.kind == '~'
		p.next()
		if s.all {
			return true
		}
	}
	if p.tok.kind == '{' {
		return p.braces(s, what) && p.isClear(s)
	}
	n, ok := p.name(what)
	if !ok {
		return false
	}
	s.add(n)
	if p.tok.kind == '-' && !s.complement {
		p.next()
		if !p.leftOut(s) {
			return false
		}
	}
	return p.isClear(s)
}

// isClear refuses sets that SELinux' own programs disagree about: ~ and self together, and
// names left out of nothing, which the module compiler takes for nothing and its
// successor (hll/pp) for everything else.
func (p *parser) isClear(s *set) bool {
	switch {
	case s.complement && s.self.kind != tokenEnd:
		p.fail(s.self.pos, ErrBeyondSubset, "self in a set with ~")
	case len(s.minus) > 0 && len(s.names) == 0:
		p.fail(s.minus[0].pos, ErrBeyondSubset, "%s is left out of a set without other names", s.minus[0].text)
	default:
		return true
	}
	p.skip()
	return false
}

func (s *set) add(n token) {
	if n.text == "self" {
		s.self = n
		return
	}
	s.names = append(s.names, n)
}

// leftOut reads the name behind a minus.
func (p *parser) leftOut(s *set) bool {
	n, ok := p.name("a name behind -")
	if !ok {
		return false
	}
	if n.text == "self" {
		p.fail(n.pos, nil, "self can't be left out of a set")
		p.skip()
		return false
	}
	s.minus = append(s.minus, n)
	return true
}

// braces reads { ... }: names, names left out, further braces.
func (p *parser) braces(s *set, what string) bool {
	empty := false
	for depth := 0; ; {
		switch p.tok.kind {
		case '{':
			if depth++; depth > maxDepth {
				p.fail(p.tok.pos, nil, "sets are nested more than %d deep", maxDepth)
				p.skip()
				return false
			}
			empty = true
			p.next()
		case '}':
			if empty {
				p.fail(p.tok.pos, nil, "an empty set; expected %s", what)
				p.skip()
				return false
			}
			p.next()
			if depth--; depth == 0 {
				return true
			}
		case '-':
			p.next()
			empty = false
			if !p.leftOut(s) {
				return false
			}
		default:
			n, ok := p.name(what + ", or }")
			if !ok {
				return false
			}
			empty = false
			s.add(n)
		}
	}
}
