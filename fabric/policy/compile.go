package policy

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// bitmap is a set of types, by their numbers.
type bitmap []uint64

func newBitmap(n int) bitmap { return make(bitmap, (n+63)/64) }

func (b bitmap) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

func (b bitmap) or(o bitmap) {
	for i, w := range o {
		b[i] |= w
	}
}

func (b bitmap) remove(o bitmap) {
	for i := range b {
		b[i] &^= o[i]
	}
}

// common returns the first number that both have, or -1.
func (b bitmap) common(o bitmap) int {
	for i := range b {
		if w := b[i] & o[i]; w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// members yields the numbers in it.
func (b bitmap) members(yield func(int) bool) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			if !yield(i*64 + bits.TrailingZeros64(w)) {
				return
			}
		}
	}
}

// table has a row for each source with the targets that it has.
type table []bitmap

func (t table) has(source, target int) bool { return t[source].has(target) }

// expanded is a rule with its types.
type expanded struct {
	*rule
	source, target bitmap
}

// hasSelf reports whether its target contains self.
func (r *expanded) hasSelf() bool { return r.rule.target.self.kind != tokenEnd }

// covers reports whether it is about a source and a target.
func (r *expanded) covers(source, target int) bool {
	return r.source.has(source) && (r.target.has(target) || source == target && r.hasSelf())
}

// compiler turns names into sets of numbers.
type compiler struct {
	*parser
	types      map[string]int
	names      []string
	attributes map[string]bitmap
	all        bitmap
}

// compile makes the policy of what has been read.
func (p *parser) compile() *Policy {
	c := &compiler{parser: p, types: make(map[string]int), attributes: make(map[string]bitmap)}
	for _, s := range p.seen {
		if !s.attribute {
			c.names = append(c.names, s.name)
		}
	}
	slices.Sort(c.names)
	c.all = newBitmap(len(c.names))
	for i, n := range c.names {
		c.types[n] = i
		c.all.add(i)
	}
	c.expandAttributes()
	policy := &Policy{file: p.file, types: c.types, attributes: make(map[string]bool), partitions: c.partitions()}
	for a := range c.attributes {
		policy.attributes[a] = true
	}
	if len(p.rules) > 0 && !p.class && !p.full() {
		p.fail(p.rules[0].pos, nil, "a rule needs the class: require { class %s { %s }; }", class, permission)
	} else if !p.needed {
		p.fail(pos{1, 1}, nil, "a module needs a require block: require { class %s { %s }; }", class, permission)
	}
	rules := c.expandRules()
	if len(p.errs) > 0 {
		return nil
	}
	policy.allowed = c.allow(rules)
	c.neverallow(policy.allowed, rules)
	return policy
}

func (c *compiler) expandAttributes() {
	for _, s := range c.seen {
		if s.attribute {
			c.attributes[s.name] = newBitmap(len(c.names))
		}
	}
	for i, n := range c.names {
		for a := range c.seen[n].attributes {
			c.attributes[a].add(i)
		}
	}
}

func (c *compiler) expandRules() (all []expanded) {
	for i := range c.rules {
		r := &c.rules[i]
		all = append(all, expanded{r, c.expand(&r.source), c.expand(&r.target)})
	}
	return all
}

// expand returns the types of a set: those named, without those left out wherever they
// stand, and of all this the complement if there is a ~.
func (c *compiler) expand(s *set) bitmap {
	b := c.union(s.names)
	if s.all {
		b.or(c.all)
	}
	b.remove(c.union(s.minus))
	if s.complement {
		rest := slices.Clone(c.all)
		rest.remove(b)
		b = rest
	}
	return b
}

func (c *compiler) union(names []token) bitmap {
	b := newBitmap(len(c.names))
	for _, n := range names {
		if i, ok := c.types[n.text]; ok {
			b.add(i)
		} else if a, ok := c.attributes[n.text]; ok {
			b.or(a)
		} else {
			c.fail(n.pos, nil, "there is no type or attribute %s", n.text)
		}
	}
	return b
}

// allow is the table of what the allow rules grant.
func (c *compiler) allow(rules []expanded) table {
	t := make(table, len(c.names))
	for i := range t {
		t[i] = newBitmap(len(c.names))
	}
	for i := range rules {
		if rules[i].never {
			continue
		}
		for s := range rules[i].source.members {
			t[s].or(rules[i].target)
			if rules[i].hasSelf() {
				t[s].add(s)
			}
		}
	}
	return t
}

// neverallow fails for each neverallow rule that forbids something that is allowed, with
// the first allow rule that does.
func (c *compiler) neverallow(allowed table, rules []expanded) {
	for i := range rules {
		never := &rules[i]
		if !never.never {
			continue
		}
		for s := range never.source.members {
			target := allowed[s].common(never.target)
			if target < 0 && never.hasSelf() && allowed.has(s, s) {
				target = s
			}
			if target < 0 {
				continue
			}
			by := slices.IndexFunc(rules, func(r expanded) bool { return !r.never && r.covers(s, target) })
			c.fail(never.pos, ErrNeverAllowed, "this neverallow rule is violated by the allow rule of line %d: %s %s : %s %s", rules[by].line, c.names[s], c.names[target], class, permission)
			break
		}
	}
}

// partitions understands the partcon statements.
func (c *compiler) partitions() map[uint16]string {
	labels := make(map[uint16]string)
	lines := make(map[uint16]int)
	for i, s := range c.scan.partcons {
		if i == maxPartitions {
			c.fail(s.pos, nil, "there are more than %d partcon statements", maxPartitions)
			break
		}
		pkey, label, ok := c.partcon(s)
		if !ok {
			continue
		}
		if line, ok := lines[pkey]; ok {
			c.fail(s.pos, nil, "P_Key %#04x has a label already, by line %d", pkey, line)
			continue
		}
		labels[pkey], lines[pkey] = label, s.line
	}
	return labels
}

// partcon understands one: a P_Key without membership, and the context of a declared type.
func (c *compiler) partcon(s partcon) (pkey uint16, label string, ok bool) {
	if len(s.words) != 2 {
		c.fail(s.pos, nil, "partcon has %d words behind it; expected a P_Key and a context, as in #partcon 0x0012 system_u:object_r:TYPE", len(s.words))
		return 0, "", false
	}
	n, err := parsePKey(s.words[0].text)
	switch {
	case err != nil:
		c.fail(s.words[0].pos, nil, "%q is not a P_Key, which is as 0x0012", s.words[0].text)
		return 0, "", false
	case n&^membership == 0:
		c.fail(s.words[0].pos, nil, "P_Key %#04x is invalid (IBTA 10.9.1)", n)
		return 0, "", false
	case n&membership != 0:
		c.fail(s.words[0].pos, nil, "P_Key %#04x has the bit of full members; a partition is named by the others: %#04x", n, n&^membership)
		return 0, "", false
	}
	context, err := ParseContext(s.words[1].text)
	if err != nil {
		c.fail(s.words[1].pos, nil, "%v", err)
		return 0, "", false
	}
	if _, ok := c.types[context.Type]; !ok {
		c.fail(s.words[1].pos, nil, "there is no type %s", context.Type)
		return 0, "", false
	}
	return n, context.String(), true
}

// parsePKey reads 16 bits, in hexadecimal behind 0x, else in decimal. SELinux takes numbers that begin
// with another 0 for octal, people do not: it refuses them.
func parsePKey(s string) (uint16, error) {
	base := 10
	if digits, ok := strings.CutPrefix(s, "0x"); ok {
		s, base = digits, 16
	} else if strings.HasPrefix(s, "0") {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, base, 16)
	return uint16(n), err
}
