package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// write writes a policy of the same decisions and partitions.
func (p *Policy) write() string {
	b := head
	names := slices.Sorted(maps.Keys(p.types))
	for _, n := range names {
		b += "type " + n + ";\n"
	}
	for _, s := range names {
		for t := range p.allowed[p.types[s]].members {
			b += fmt.Sprintf("allow %s %s : rdma_partition modify;\n", s, names[t])
		}
	}
	for pkey, label := range p.partitions {
		b += fmt.Sprintf("#partcon %#04x %s\n", pkey, label)
	}
	return b
}

// FuzzParse: any file is refused with errors that can be shown, few of them, or makes a policy
// that can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(fabric))
	f.Add([]byte(head + "attribute x; type a, x; type b; typeattribute b x; allow { x -a } { self { b } } : rdma_partition modify; neverallow ~ { a b } * : { rdma_partition } { modify };"))
	f.Add([]byte("module m 1.2.3.4; require { type a, b; attribute x; class rdma_partition modify; } TYPE c, x; allow c a - b:rdma_partition modify;\n#partcon 32767 u:object_r:a:s0:c0.c1023\n# partcon 1"))
	f.Add([]byte("type a alias b; role r types a; # x\r\n\x00\xff{{{{}}}}-~*"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("f", text)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 || len(all) > maxErrors || p != nil {
				t.Fatalf("%d errors, %v", len(all), p)
			}
			for _, e := range all {
				if cause := printable.Check(e.Error()); cause != nil {
					t.Errorf("%q: %v", e.Error(), cause)
				}
				if e.Line < 1 || e.Column < 1 || e.Line > 1+strings.Count(string(text), "\n") {
					t.Errorf("a place outside of the file: %v", e)
				}
			}
			return
		}
		if len(p.types) > 100 {
			return // what is written would exceed the limit of rules
		}
		again, err := Parse("f", []byte(p.write()))
		if err != nil {
			if strings.Contains(err.Error(), "more than") {
				return
			}
			t.Fatalf("%v\n%s", err, p.write())
		}
		if !maps.Equal(again.partitions, p.partitions) {
			t.Errorf("partitions %v, then %v", p.partitions, again.partitions)
		}
		for s := range p.types {
			for o := range p.types {
				x, err1 := p.MayModify(s, "u:r:"+o)
				y, err2 := again.MayModify("u:r:"+s, o)
				if x != y || err1 != nil || err2 != nil {
					t.Errorf("%s %s: %v, %v; then %v, %v", s, o, x, err1, y, err2)
				}
			}
		}
	})
}

// FuzzParseContext: what is accepted is written as it was read, and is one word.
func FuzzParseContext(f *testing.F) {
	for _, s := range []string{"system_u:object_r:solver_t", "u:r:t:s0-s0:c0.c1023", "u:r:t:", ":::", "a.b:c-d:e_f", "u:r:t:s0 x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseContext(s)
		if err != nil {
			if !errors.Is(err, ErrContext) || c != (Context{}) {
				t.Errorf("%q: %v, %v", s, c, err)
			}
			return
		}
		if c.String() != s || strings.ContainsAny(s, " \t\n\x00") || printable.Check(s) != nil {
			t.Errorf("%q is read as %q", s, c)
		}
	})
}
