package main

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/integration/siw"
)

// SuiteVerdict is the result of a case of the conformance suite in one
// direction over one variant.
type SuiteVerdict struct {
	siw.Result
	Blame      Blame
	Wire       string
	Tries      int
	Terminates [][]byte // that siw sent
}

func judgeSuite(r siw.Result, wire *capture) SuiteVerdict {
	v := SuiteVerdict{Result: r, Tries: 1, Terminates: wire.terminates(r.Flows)}
	v.Blame, v.Wire = judgeWire(wire.ofFlows(r.Flows), !r.Failed)
	return v
}

// Expected reports whether the case went as it should.
func (v SuiteVerdict) Expected() bool { return !v.Failed && v.Blame != Us }

// TestName is the name of the test in the virtual machine.
func (v SuiteVerdict) TestName() string {
	return "Siw/" + v.Variant + "/" + siw.CaseTest(v.Case, v.SiwActs)
}

func (v SuiteVerdict) same(o SuiteVerdict) bool { return v.TestName() == o.TestName() }

// String is the verdict in a line.
func (v SuiteVerdict) String() string {
	what := "ok"
	if v.Failed {
		what = "FAILED"
	}
	if v.Wire != "" {
		what += "; " + v.Wire
	}
	return fmt.Sprintf("%s: %s", v.TestName(), what)
}

// testLog is the suite's log of a test.
func testLog(log, name string) string {
	_, rest, ok := strings.Cut(log, "=== RUN   "+name+"\n")
	if !ok {
		return ""
	}
	part, _, _ := strings.Cut(rest, "=== RUN")
	return strings.TrimRight(part, "\n")
}
