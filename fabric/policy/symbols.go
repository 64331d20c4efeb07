package policy

// symbol is a type or an attribute.
type symbol struct {
	name      string
	attribute bool
	declared  bool // not only required
	pos
	attributes map[string]bool // of a type
}

// kind is what it is, in words.
func (s *symbol) kind() string {
	if s.attribute {
		return "attribute"
	}
	return "type"
}

// typeStatement is type NAME [, ATTRIBUTE]...;
func (p *parser) typeStatement() {
	n, ok := p.name("a type's name")
	if !ok {
		return
	}
	s := p.declare(n, false)
	if p.isKeyword("alias") {
		p.fail(p.tok.pos, ErrBeyondSubset, "the alias of a type")
		p.skip()
		return
	}
	if p.accept(',') && !p.attributesOf(s) {
		return
	}
	p.expect(';', ", and an attribute, or ;")
}

// typeattribute is typeattribute TYPE ATTRIBUTE [, ATTRIBUTE]...;
func (p *parser) typeattribute() {
	n, ok := p.name("a type's name")
	if !ok {
		return
	}
	s := p.seen[n.text]
	switch {
	case s == nil:
		p.fail(n.pos, nil, "there is no type %s above this line", n.text)
	case s.attribute:
		p.fail(n.pos, nil, "%s is an attribute, since line %d; only types have attributes", n.text, s.line)
	}
	if p.attributesOf(s) {
		p.expect(';', ", and another attribute, or ;")
	}
}

// attributesOf reads a list of attributes and gives them to a type (nil: none).
func (p *parser) attributesOf(s *symbol) bool {
	for {
		n, ok := p.name("an attribute's name")
		if !ok {
			return false
		}
		switch a := p.seen[n.text]; {
		case a == nil:
			p.fail(n.pos, nil, "there is no attribute %s above this line", n.text)
		case !a.attribute:
			p.fail(n.pos, nil, "%s is a type, since line %d, and no attribute", n.text, a.line)
		case s != nil && !s.attribute:
			if s.attributes == nil {
				s.attributes = make(map[string]bool)
			}
			s.attributes[n.text] = true
		}
		if !p.accept(',') {
			return true
		}
	}
}

// declare notes a type or an attribute that is declared here.
func (p *parser) declare(n token, attribute bool) *symbol {
	s := p.symbol(n, attribute)
	if s != nil {
		if s.declared {
			p.fail(n.pos, nil, "%s %s is declared twice, first in line %d", s.kind(), n.text, s.line)
		}
		s.declared = true
	}
	return s
}

// symbol returns a type or an attribute, and makes it unless it is known; nil if it can't be.
func (p *parser) symbol(n token, attribute bool) *symbol {
	if n.text == "self" {
		p.fail(n.pos, nil, "self is the source of a rule and can't be declared or required")
		return nil
	}
	s := p.seen[n.text]
	if s == nil {
		if len(p.seen) == maxSymbols {
			p.fail(n.pos, nil, "there are more than %d types and attributes", maxSymbols)
			p.scan.rest = nil
			return nil
		}
		s = &symbol{name: n.text, attribute: attribute, pos: n.pos}
		p.seen[n.text] = s
	}
	if s.attribute != attribute {
		p.fail(n.pos, nil, "%s is %s %s already, since line %d", n.text, article(s.kind()), s.kind(), s.line)
		return nil
	}
	return s
}

func article(kind string) string {
	if kind == "attribute" {
		return "an"
	}
	return "a"
}
