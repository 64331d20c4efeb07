package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// class and permission are all that rules are about.
const (
	class      = "rdma_partition"
	permission = "modify"
)

// rule is an allow or a neverallow statement.
type rule struct {
	pos
	never          bool
	source, target set
}

// parser reads the statements of one file.
type parser struct {
	file   string
	scan   scanner
	tok    token
	errs   Errors
	seen   map[string]*symbol
	rules  []rule
	needed bool // there is a require block
	class  bool // and it has the class
}

// Parse compiles a policy from text, which was read from file. Every error is an *Error in
// the returned Errors: text is not of the language, says one thing twice or something else
// than it has said before, breaks a limit, or allows what it never allows.
func Parse(file string, text []byte) (*Policy, error) {
	p := &parser{file: file, seen: make(map[string]*symbol)}
	if len(text) > maxFile {
		p.fail(pos{1, 1}, nil, "the file has %d bytes; at most %d are possible", len(text), maxFile)
		return nil, p.errs
	}
	checkLines(string(text), p.fail)
	p.scan = scanner{rest: text, at: pos{1, 1}, fail: p.fail}
	p.next()
	p.header()
	for p.tok.kind != tokenEnd && !p.full() {
		p.statement()
	}
	policy := p.compile()
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b *Error) int {
			return cmp.Or(a.Line-b.Line, a.Column-b.Column)
		})
		return nil, p.errs
	}
	return policy, nil
}

func (p *parser) full() bool { return len(p.errs) >= maxErrors }

// fail records an error.
func (p *parser) fail(at pos, err error, format string, args ...any) {
	if p.full() {
		return
	}
	text := fmt.Sprintf(format, args...)
	if errors.Is(err, ErrBeyondSubset) {
		text += ": " + err.Error()
	}
	p.errs = append(p.errs, &Error{p.file, at.line, at.column, text, err})
}

func (p *parser) next() { p.tok = p.scan.next() }

func (p *parser) isKeyword(k string) bool { return p.tok.kind == tokenKeyword && p.tok.text == k }

// accept takes a token of the kind if it is the next.
func (p *parser) accept(k tokenKind) bool {
	if p.tok.kind != k {
		return false
	}
	p.next()
	return true
}

// expect takes a token of the kind, or fails with what it should have been and goes on
// behind the statement.
func (p *parser) expect(k tokenKind, what string) (t token, ok bool) {
	if t = p.tok; t.kind == k {
		p.next()
		return t, true
	}
	p.wanted(what)
	return t, false
}

// wanted fails with what the next token should have been, and skips the statement.
func (p *parser) wanted(what string) {
	if p.tok.kind != tokenBad { // that is reported already
		p.fail(p.tok.pos, nil, "found %v; expected %s", p.tok, what)
	}
	p.skip()
}

// skip goes on behind the next semicolon, or where the next statement begins.
func (p *parser) skip() {
	for p.tok.kind != tokenEnd && !p.beginsStatement() && !p.accept(';') {
		p.next()
	}
}

// beginsStatement reports whether the next token is a keyword that stands within no
// statement outside of require.
func (p *parser) beginsStatement() bool {
	return p.tok.kind == tokenKeyword && slices.Contains([]string{"type", "attribute", "typeattribute", "allow", "neverallow", "require", "module"}, p.tok.text)
}

// name takes an identifier that may name a type or an attribute.
func (p *parser) name(what string) (t token, ok bool) {
	if p.tok.kind == tokenKeyword {
		what += ", which a keyword can't be"
	}
	if t, ok = p.expect(tokenIdentifier, what); !ok {
		return t, false
	}
	if strings.Contains(t.text, ".") {
		p.fail(t.pos, ErrBeyondSubset, "the dot in %s makes it a child of another name, with bounds", t.text)
		p.skip()
		return t, false
	}
	return t, true
}

// header is module NAME VERSION, which comes first.
func (p *parser) header() {
	if !p.isKeyword("module") {
		if p.tok.kind != tokenBad {
			p.fail(p.tok.pos, nil, "found %v; a policy begins with: module NAME VERSION;", p.tok)
		}
		return
	}
	p.next()
	if _, ok := p.name("the module's name"); !ok {
		return
	}
	version, ok := p.expect(tokenVersion, "the module's version, as in 1.0")
	if !ok {
		return
	}
	if strings.HasPrefix(version.text, "0x") {
		p.fail(version.pos, ErrBeyondSubset, "a version in hexadecimal")
	} else if !isVersion(version.text) {
		p.fail(version.pos, nil, "%s is not a version, which is as 1.0", version.text)
	}
	p.expect(';', "; after the module's version")
}

// isVersion reports whether s is digits, then perhaps a dot and letters, digits, _ and dots.
func isVersion(s string) bool {
	number, _, _ := strings.Cut(s, ".")
	return strings.Trim(number, "0123456789") == ""
}

// statement reads one statement.
func (p *parser) statement() {
	if p.accept(';') {
		return
	}
	t := p.tok
	if t.kind != tokenKeyword {
		if t.kind == tokenIdentifier && strings.EqualFold(t.text, "partcon") {
			p.fail(t.pos, nil, "write #partcon: SELinux has no such statement, and takes it for a comment")
			p.next()
			p.accept(tokenVersion)
			return
		}
		p.wanted("type, attribute, typeattribute, allow, neverallow or require")
		return
	}
	p.next()
	switch t.text {
	case "type":
		p.typeStatement()
	case "attribute":
		if n, ok := p.name("an attribute's name"); ok {
			p.declare(n, true)
			p.expect(';', "; after the attribute's name")
		}
	case "typeattribute":
		p.typeattribute()
	case "allow", "neverallow":
		p.rule(t, t.text == "neverallow")
	case "require":
		p.require()
	case "module":
		p.fail(t.pos, nil, "a second module; a file is one")
		p.skip()
	default:
		p.fail(t.pos, ErrBeyondSubset, "the statement %s", t.text)
		p.skip()
	}
}

// require is require { class rdma_partition PERMISSIONS; type NAME [, NAME]...; attribute ...; }
func (p *parser) require() {
	p.needed = true
	if _, ok := p.expect('{', "{ after require"); !ok {
		return
	}
	if p.tok.kind == '}' {
		p.fail(p.tok.pos, nil, "an empty require block; expected class, type or attribute")
	}
	for !p.accept('}') && !p.full() {
		t := p.tok
		if t.kind == tokenEnd {
			p.wanted("} at the end of the require block")
			return
		}
		if t.kind != tokenKeyword {
			p.wanted("class, type, attribute or } in a require block")
			continue
		}
		p.next()
		switch t.text {
		case "class":
			if p.tok.kind == '{' { // which is possible in rules
				p.wanted("the class, " + class)
			} else if p.classAnd("the class") {
				p.class = true
			}
		case "type", "attribute":
			p.requireNames(t.text)
		default:
			p.fail(t.pos, ErrBeyondSubset, "%s in a require block", t.text)
			p.skip()
		}
	}
}

func (p *parser) requireNames(kind string) {
	for {
		n, ok := p.name("the name of " + article(kind) + " " + kind)
		if !ok {
			return
		}
		p.symbol(n, kind == "attribute")
		if !p.accept(',') {
			break
		}
	}
	p.expect(';', ", and another name, or ;")
}

// rule is SOURCE TARGET : rdma_partition PERMISSIONS; behind its keyword t.
func (p *parser) rule(t token, never bool) {
	r := rule{pos: t.pos, never: never}
	if !p.set(&r.source, never, "the source, a set of types or attributes") {
		return
	}
	if r.source.self.kind != tokenEnd {
		p.fail(r.source.self.pos, nil, "self stands for the source, and is possible in the target only")
	}
	if !p.set(&r.target, never, "the target, a set of types or attributes") {
		return
	}
	if p.tok.kind == ';' && !never {
		p.fail(t.pos, ErrBeyondSubset, "a rule about roles, without : %s", class)
		p.next()
		return
	}
	if _, ok := p.expect(':', ": after the target"); !ok {
		return
	}
	if !p.classAnd("the class of the rule") {
		return
	}
	if len(p.rules) == maxRules {
		p.fail(t.pos, nil, "there are more than %d rules", maxRules)
		p.scan.rest = nil
		p.skip()
		return
	}
	p.rules = append(p.rules, r)
}

// classAnd reads the class, its permission and the semicolon.
func (p *parser) classAnd(what string) bool {
	return p.only(class, what) && p.only(permission, "the permission") && p.semicolon()
}

func (p *parser) semicolon() bool {
	_, ok := p.expect(';', "; at the end of the statement")
	return ok
}
