package policytest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Drawer draws policies at random: right ones, and some that allow what they never allow.
type Drawer struct {
	*rand.Rand
	b          strings.Builder
	types      []string
	attributes []string
}

// names are what types and attributes are called: as people do, and as the scanner may
// take for something else.
var names = []string{"solver_t", "a", "B", "x-y", "Type", "sELF", "modify", "rdma_partition", "a1", "T_", "t1x", "self-", "l10", "roleS", "low-higher", "source_", "fe", "c-", "U2_u"}

// Draw returns the policy of a seed.
func Draw(seed uint64) string {
	d := &Drawer{Rand: rand.New(rand.NewPCG(seed, 16))}
	return d.module()
}

// write writes words with blanks between them: where some are needed, and perhaps where
// not.
func (d *Drawer) write(words ...string) {
	for _, w := range words {
		if d.b.Len() > 0 {
			d.b.WriteString(d.blank())
		}
		d.b.WriteString(w)
	}
}

func (d *Drawer) blank() string {
	switch d.IntN(12) {
	case 0:
		return "\n"
	case 1:
		return "\t  "
	case 2:
		return " # a comment; { ~self }\n"
	case 3:
		return "#line 3\n"
	}
	return " "
}

func pick[T any](d *Drawer, from []T) T { return from[d.IntN(len(from))] }

// keyword is in lower or upper case.
func (d *Drawer) keyword(k string) string {
	if d.IntN(8) == 0 {
		return strings.ToUpper(k)
	}
	return k
}

func (d *Drawer) module() string {
	d.b.WriteString("module fabric " + pick(d, []string{"1", "1.0", "1.2.3", "1.2.3.4", "1.a_b", "2."}))
	d.write(";")
	shuffled := d.Perm(len(names))
	requires := func() {
		d.write(d.keyword("require"), "{", d.keyword("class"), "rdma_partition", d.only("modify", true), ";")
		if d.IntN(2) == 0 {
			d.write("type", "required_t", ";")
			d.types = append(d.types, "required_t")
		}
		if d.IntN(3) == 0 {
			d.write("attribute", "required", ";")
			d.attributes = append(d.attributes, "required")
		}
		d.write("}")
	}
	late := d.IntN(4) == 0
	if !late {
		requires()
	}
	count := 2 + d.IntN(6)
	var rules []int // rules may stand before what they are about, but need its names
	for i := range count {
		name := names[shuffled[i]]
		switch {
		case d.IntN(3) == 0:
			d.write(d.keyword("attribute"), name, ";")
			d.attributes = append(d.attributes, name)
		case len(d.attributes) > 0 && d.IntN(2) == 0:
			d.write(d.keyword("type"), name, ",", d.list(d.attributes), ";")
			d.types = append(d.types, name)
		default:
			d.write("type", name, ";")
			d.types = append(d.types, name)
		}
		if len(d.types) > 0 && len(d.attributes) > 0 && d.IntN(3) == 0 {
			d.write(d.keyword("typeattribute"), pick(d, d.types), d.list(d.attributes), ";")
		}
		if len(d.types) > 0 && d.IntN(4) == 0 {
			d.rule(false)
		}
		rules = append(rules, i)
	}
	if late {
		requires()
	}
	if len(d.types) == 0 {
		return d.b.String() + "\n"
	}
	for range 1 + d.IntN(len(rules)) {
		d.rule(false)
	}
	for range d.IntN(3) {
		d.rule(true)
	}
	for i := range d.IntN(3) {
		fmt.Fprintf(&d.b, "\n#partcon %d system_u:object_r:%s\n", i+1, pick(d, d.types))
	}
	return d.b.String() + "\n"
}

// list is attributes with commas.
func (d *Drawer) list(from []string) string {
	s := pick(d, from)
	for d.IntN(3) == 0 {
		s += d.blank() + "," + pick(d, from)
	}
	return s
}

// only is a set of one name.
func (d *Drawer) only(name string, twice bool) string {
	switch n := d.IntN(4); {
	case n == 0:
		return "{ " + name + " }"
	case n == 1 && twice:
		return "{" + name + " {" + name + "}}"
	}
	return name
}

func (d *Drawer) rule(never bool) {
	keyword := "allow"
	if never {
		keyword = "neverallow"
	}
	class := d.only("rdma_partition", false)
	if strings.HasPrefix(class, "{") && d.IntN(2) == 0 {
		class = "{rdma_partition}"
	}
	d.write(d.keyword(keyword), d.set(never, false), d.set(never, true), ":", class, d.only("modify", true), ";")
}

// set is a set of types and attributes.
func (d *Drawer) set(never, target bool) string {
	if never && d.IntN(8) == 0 {
		return "*"
	}
	if never && d.IntN(4) == 0 {
		if d.IntN(2) == 0 {
			return "~" + d.name()
		}
		return "~" + d.blank() + d.braces(false, 0)
	}
	switch d.IntN(5) {
	case 0:
		return d.name() + " - " + d.name()
	case 1, 2:
		return d.braces(target, 0)
	}
	if target && d.IntN(4) == 0 {
		return "self"
	}
	return d.name()
}

func (d *Drawer) name() string {
	if len(d.attributes) > 0 && d.IntN(2) == 0 {
		return pick(d, d.attributes)
	}
	return pick(d, d.types)
}

func (d *Drawer) braces(self bool, depth int) string {
	s := "{"
	if depth == 0 { // a set of names left out alone is beyond the subset
		s += d.name()
	}
	for range 1 + d.IntN(3) {
		switch n := d.IntN(8); {
		case n == 0 && depth < 3:
			s += d.braces(self, depth+1)
		case n <= 2:
			s += " -" + d.name()
		case n == 3 && self:
			s += " self"
		default:
			s += d.blank() + d.name()
		}
	}
	return s + d.blank() + "}"
}

// Damage returns a policy with some of its tokens dropped, doubled, exchanged or
// replaced, as the seed has it, and without partcon, which SELinux' programs do not look at.
func Damage(text string, seed uint64) string {
	text, _, _ = strings.Cut(text, "\n#partcon")
	r := rand.New(rand.NewPCG(seed, 17))
	tokens := strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == '\t' })
	vocabulary := []string{"type", "attribute", "typeattribute", "allow", "neverallow", "require", "{", "}", ";", ",", ":", "-", "~", "*", "self",
		"a", "B", "required_t", "rdma_partition", "modify", "read", "class", "role", "1", "0x12", "a.b", "t1", "if", "alias", "#x\n", "_", "..", "module", "dontaudit", "permissive"}
	for range 1 + r.IntN(2) {
		i := r.IntN(len(tokens))
		switch j := r.IntN(len(tokens)); r.IntN(6) {
		case 0:
			tokens[i] = ""
		case 1:
			tokens[i] += " " + tokens[i]
		case 2:
			tokens[i], tokens[j] = tokens[j], tokens[i]
		case 3:
			tokens[i] = vocabulary[r.IntN(len(vocabulary))]
		case 4:
			tokens[i] = tokens[j]
		case 5:
			tokens[i] += " " + vocabulary[r.IntN(len(vocabulary))]
		}
	}
	return strings.Join(tokens, " ")
}
