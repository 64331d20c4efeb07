package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestErrorsSayWhereAndWhatIsExpected(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "1:1: found the end of the file; a policy begins with: module NAME VERSION;\n1:1: a module needs a require block",
		"type a;":                                "1:1: found the keyword type; a policy begins with: module NAME VERSION;\n1:1: a module needs a require block",
		"module m 1.0;type a;":                   "1:1: a module needs a require block: require { class rdma_partition { modify }; }",
		"module m;":                              `1:9: found ";"; expected the module's version, as in 1.0`,
		"module m 1x;":                           "1:10: 1x is not a version, which is as 1.0",
		"module m 0x12;":                         "1:10: a version in hexadecimal: this is not in the subset",
		"module module 1;":                       "1:8: found the keyword module; expected the module's name, which a keyword can't be",
		"module m 1.0 type a;":                   "1:14: found the keyword type; expected ; after the module's version",
		head + "module n 1;":                     "3:1: a second module; a file is one",
		head + "type a":                          "3:7: found the end of the file; expected , and an attribute, or ;",
		head + "type a; type a":                  "3:14: type a is declared twice, first in line 3",
		head + "attribute a;\ntype a;":           "4:6: a is an attribute already, since line 3",
		head + "type role;":                      "3:6: found the keyword role; expected a type's name, which a keyword can't be",
		head + "type T1;":                        "3:6: found the keyword t1; expected a type's name",
		head + "type self;":                      "3:6: self is the source of a rule and can't be declared",
		head + "type a alias b;":                 "3:8: the alias of a type: this is not in the subset",
		head + "type a; type a.b;":               "3:14: the dot in a.b makes it a child of another name, with bounds: this is not",
		head + "type a, b;":                      "3:9: there is no attribute b above this line",
		head + "type a, a;":                      "3:9: a is a type, since line 3, and no attribute",
		head + "typeattribute a b;":              "3:15: there is no type a above this line\n3:17: there is no attribute b",
		head + "attribute a; typeattribute a a;": "3:28: a is an attribute, since line 3; only types have attributes",
		head + "role r;":                         "3:1: the statement role: this is not in the subset",
		head + "class c;":                        "3:1: the statement class: this is not",
		head + "if a { }":                        "3:1: the statement if: this is not",
		head + "dontaudit a b:rdma_partition modify;":                            "3:1: the statement dontaudit: this is not",
		head + "policy_module(a, 1.0)":                                           `3:14: the character "(" stands in no statement`,
		head + "partcon 0x0012 u:object_r:a":                                     "3:1: write #partcon: SELinux has no such statement",
		head + "type a;\r\n":                                                     `3:8: the character "\r" stands in no statement: lines end with LF alone`,
		head + "type \xc3\xa9;":                                                  `3:6: the character "\xc3" stands in no statement: outside of comments a file is ASCII`,
		head + "\t# caf\xc3\xa9 \r\n  @":                                         `4:3: the character "@" stands in no statement`,
		head + "type a\x00;":                                                     `3:7: the character "\x00" stands in no statement`,
		head + "type _a;":                                                        `3:6: the character "_" stands in no statement`,
		head + "type a; allow a a:rdma_partition read;":                          "3:34: the permission read; the only one is modify: this is not",
		head + "type a; allow a a:self modify;":                                  "3:19: the class of the rule self; the only one is rdma_partition: this is not",
		head + "type a; allow a a:process modify;":                               "3:19: the class of the rule process; the only one is rdma_partition: this is not",
		head + "type a; allow a a:rdma_partition *;":                             `3:34: the permission "*"; write modify: this is not`,
		head + "type a; allow a a:rdma_partition ~modify;":                       `3:34: the permission "~"; write modify: this is not`,
		head + "type a; allow a a:{ rdma_partition -rdma_partition } modify;":    "3:37: the class of the rule with a name that is left out; write rdma_partition: this is not",
		head + "type a; allow a;":                                                `3:16: found ";"; expected the target`,
		head + "type a; allow a a;":                                              "3:9: a rule about roles, without : rdma_partition: this is not",
		head + "type a; allow a a rdma_partition modify;":                        "3:19: found rdma_partition; expected : after the target",
		head + "type a; allow a { }:rdma_partition modify;":                      "3:19: an empty set; expected the target",
		head + "type a; allow a {{a}{}}:rdma_partition modify;":                  "3:22: an empty set; expected the target",
		head + "type a; allow a { a, a }:rdma_partition modify;":                 `3:20: found ","; expected the target, a set of types or attributes, or }`,
		head + "type a; allow { a - } a:rdma_partition modify;":                  `3:21: found "}"; expected a name behind -`,
		head + "type a; allow self a:rdma_partition modify;":                     "3:15: self stands for the source",
		head + "type a; allow a a - self:rdma_partition modify;":                 "3:21: self can't be left out of a set",
		head + "type a; allow * a:rdma_partition modify;":                        `3:15: "*" is possible in neverallow rules only`,
		head + "type a; allow a ~a:rdma_partition modify;":                       `3:17: "~" is possible in neverallow rules only`,
		head + "type a; neverallow a ~self:rdma_partition modify;":               "3:23: self in a set with ~: this is not",
		head + "type a; allow { -a } a:rdma_partition modify;":                   "3:18: a is left out of a set without other names: this is not",
		head + "type a; allow a {self { -a }}:rdma_partition modify;":            "3:26: a is left out of a set without other names: this is not",
		head + "type a; neverallow a { * }:rdma_partition modify;":               `3:24: found "*"; expected the target`,
		head + "type a; allow a b:rdma_partition modify;":                        "3:17: there is no type or attribute b",
		head + "type a-b; type c; allow a -b c:rdma_partition modify;":           "3:25: there is no type or attribute a\n3:28: there is no type or attribute b",
		"module m 1;require { }":                                                 "1:22: an empty require block; expected class, type or attribute",
		"module m 1;require { type a;":                                           "1:29: found the end of the file; expected } at the end of the require block",
		"module m 1;require { role r; }":                                         "1:22: role in a require block: this is not",
		"module m 1;require { class process { fork }; }":                         "1:28: the class process; the only one is rdma_partition: this is not",
		"module m 1;require { class rdma_partition { modify read }; }":           "1:52: the permission read; the only one is modify: this is not",
		"module m 1;require { type a; }\nallow a a:rdma_partition modify;":       "2:1: a rule needs the class: require { class rdma_partition { modify }; }",
		head + "type a; # partcon 0x12 u:object_r:a":                             "3:9: this comment looks like a partcon statement and is none",
		head + "type a; #Partcon 0x12 u:object_r:a":                              "3:9: this comment looks like a partcon statement and is none",
		head + "type a; #partcon":                                                "3:9: partcon has 0 words behind it",
		head + "type a; #partcon 0x12 u:object_r:a;":                             `3:23: "u:object_r:a;": not a security context`,
		head + "type a; #partcon 0x12 u:object_r:b":                              "3:23: there is no type b",
		head + "type a; #partcon 0x10012 u:object_r:a":                           `3:18: "0x10012" is not a P_Key, which is as 0x0012`,
		head + "type a; #partcon 012 u:object_r:a":                               `3:18: "012" is not a P_Key`,
		head + "type a; #partcon 0x8012 u:object_r:a":                            "3:18: P_Key 0x8012 has the bit of full members; a partition is named by the others: 0x0012",
		head + "type a; #partcon 0x8000 u:object_r:a":                            "3:18: P_Key 0x8000 is invalid (IBTA 10.9.1)",
		head + "type a;\n#partcon 0x12 u:object_r:a\n#partcon 18 v:object_r:a\n": "5:1: P_Key 0x0012 has a label already, by line 4",
		head + "type " + strings.Repeat("a", 200) + ";":                          "3:6: the name aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa... has 200 bytes; at most 128 are possible",
		head + "#" + strings.Repeat("a", 5000):                                   "3:1: the line has 5001 bytes; at most 4096 are possible",
		strings.Repeat("\n", maxFile+1):                                          "1:1: the file has 1048577 bytes; at most 1048576 are possible",
	} {
		p, err := Parse("f", []byte(text))
		if err == nil || p != nil {
			t.Errorf("%.80q: no error", text)
			continue
		}
		for line := range strings.SplitSeq(want, "\n") {
			if !strings.Contains("\n"+err.Error(), "\nf:"+line) {
				t.Errorf("%.80q:\n%v\nwant %s", text, err, want)
				break
			}
		}
		var e *Error
		if !errors.As(err, &e) || e.File != "f" || errors.Is(err, ErrBeyondSubset) != strings.Contains(want, "this is not") {
			t.Errorf("%.80q: %#v", text, err)
		}
	}
}

func TestAllErrorsAreReportedInTheOrderOfTheFile(t *testing.T) {
	_, err := Parse("f", []byte(head+"type a, x;\nallow a y:rdma_partition modify;\ntype b\ntype c;\nrole r;\n"))
	var lines []int
	for _, e := range err.(Errors) {
		lines = append(lines, e.Line)
	}
	if got := fmt.Sprint(lines); got != "[3 4 6 7]" { // b's semicolon is missed where c begins
		t.Errorf("lines %s:\n%v", got, err)
	}
}

func TestErrorsAreBounded(t *testing.T) {
	_, err := Parse("f", []byte(head+strings.Repeat("role r;\n", 10000)))
	if n := len(err.(Errors)); n != maxErrors {
		t.Errorf("%d errors", n)
	}
	if !strings.HasSuffix(err.Error(), "there may be more errors; these come first") {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i+1)
		}
		return b.String()
	}
	nested := func(n int) string {
		return "type a; allow " + strings.Repeat("{", n) + "a" + strings.Repeat("}", n) + " a:rdma_partition modify;"
	}
	for name, c := range map[string]struct{ most, tooMuch, want string }{
		"symbols":    {many(maxSymbols, "type a%d;\n"), many(maxSymbols+1, "type a%d;\n"), "there are more than 2048 types and attributes"},
		"rules":      {"type a; " + many(maxRules, "allow a a:rdma_partition modify;#%d\n"), "type a; " + many(maxRules+1, "allow a a:rdma_partition modify;#%d\n"), "there are more than 4096 rules"},
		"depth":      {nested(maxDepth), nested(maxDepth + 1), "sets are nested more than 32 deep"},
		"partitions": {"type a;\n" + many(maxPartitions, "#partcon %d u:r:a\n"), "type a;\n" + many(maxPartitions+1, "#partcon %d u:r:a\n"), "there are more than 32767 partcon statements"},
		"name":       {"type " + strings.Repeat("a", maxName) + ";", "type " + strings.Repeat("a", maxName+1) + ";", "at most 128 are possible"},
	} {
		if _, err := Parse("f", []byte(head+c.most)); err != nil {
			t.Errorf("%s: at the limit: %v", name, err)
		}
		if _, err := Parse("f", []byte(head+c.tooMuch)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: beyond the limit: %v", name, err)
		}
	}
}

func TestViolatedNeverallowNamesBothLines(t *testing.T) {
	for text, want := range map[string]string{
		"type a; type b;\nallow a b:rdma_partition modify;\nneverallow a b:rdma_partition modify;":                                  "f:5:1: this neverallow rule is violated by the allow rule of line 4: a b : rdma_partition modify",
		"type a; type b;\nneverallow * ~a:rdma_partition modify;\nallow b a:rdma_partition modify;allow a b:rdma_partition modify;": "f:4:1: this neverallow rule is violated by the allow rule of line 5: a b : rdma_partition modify",
		"attribute x; type a, x; type b, x;\nallow x self:rdma_partition modify;\nneverallow b x:rdma_partition modify;":            "f:5:1: this neverallow rule is violated by the allow rule of line 4: b b : rdma_partition modify",
		"attribute x; type a, x; type b, x;\nallow x x:rdma_partition modify;\nneverallow a self:rdma_partition modify;":            "f:5:1: this neverallow rule is violated by the allow rule of line 4: a a : rdma_partition modify",
	} {
		_, err := Parse("f", []byte(head+text))
		if !errors.Is(err, ErrNeverAllowed) || err.Error() != want {
			t.Errorf("%s\n%v", text, err)
		}
	}
	parse(t, head+"attribute x; type a, x; type b, x; allow x self:rdma_partition modify; neverallow a b:rdma_partition modify; neverallow { x -x } *:rdma_partition modify; neverallow ~x *:rdma_partition modify;")
}
