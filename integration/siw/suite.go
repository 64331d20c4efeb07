package siw

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest/agent"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// Result is the result of one case.
type Result struct {
	Variant string
	Case    string
	RFC     string // what it proves
	SiwActs bool   // siw is the end that acts, we are the other one
	Failed  bool
	Seconds float64
	Flows   []string `json:",omitempty"` // of its streams, our end first
	End     bool     `json:",omitempty"` // alone: the suite has come to its end
}

// Main runs the suite in the virtual machine and never returns. It takes the flags of
// go test, too; with -test.run a part of the suite can be run.
func Main() {
	testing.Init()
	var l Lab
	flag.StringVar(&l.Agent, "agent", "", "path of the agent")
	flag.StringVar(&l.Namespace, "namespace", "A", "siw's network namespace")
	flag.StringVar(&l.Device, "device", "siwa", "siw's device")
	results := flag.String("results", "/dev/stdout", "`file` for the results, a line of JSON each")
	port := flag.Uint("port", 7300, "first TCP port")
	flag.Parse()
	f, err := os.Create(*results)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	out := json.NewEncoder(f)
	tests := []testing.InternalTest{{Name: "Siw", F: func(t *testing.T) { l.suite(t, uint16(*port), out) }}}
	testing.Main(func(pat, s string) (bool, error) { return regexp.MatchString(pat, s) }, tests, nil, nil)
}

// suite runs all cases that siw can do over all variants.
func (l Lab) suite(t *testing.T, port uint16, out *json.Encoder) {
	for i, v := range Variants() {
		t.Run(v.Name(), func(t *testing.T) {
			p := l.Open(t, v, port+uint16(i))
			for _, c := range Cases() {
				for _, siwActs := range []bool{false, true} {
					if why := Lacking(c, siwActs); why == 0 && v.Runs(c) {
						p.Run(t, c, siwActs, func(r Result) {
							if err := out.Encode(r); err != nil {
								t.Error(err)
							}
						})
					}
				}
			}
		})
	}
	if err := out.Encode(Result{End: true}); err != nil {
		t.Error(err)
	}
}

// Cases are the cases of the suite for ends that have a receive queue each.
func Cases() []conformance.Case {
	return conformance.Without(conformance.Cases(), conformance.SharedReceives)
}

// Run runs a case in one direction, as a subtest, and passes its result to note.
func (p *Pairs) Run(t *testing.T, c conformance.Case, siwActs bool, note func(Result)) {
	r := Result{Variant: p.v.Name(), Case: c.Name, RFC: c.RFC, SiwActs: siwActs}
	t.Run(CaseTest(c.Name, siwActs), func(t *testing.T) {
		begin := time.Now()
		p.streams.Flows = nil
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the last lines to and from siw's end:\n%s", p.agent.Lines())
			}
			if t.Skipped() {
				t.Error("it was skipped, and should not have been chosen")
			}
			r.Failed, r.Seconds, r.Flows = t.Failed(), time.Since(begin).Seconds(), p.streams.Flows
			note(r)
		})
		c.Run(t, p.Connect, siwActs)
	})
}

// CaseTest is the name of a case's test in one direction.
func CaseTest(name string, siwActs bool) string {
	who := "we-act"
	if siwActs {
		who = "siw-acts"
	}
	return strings.ReplaceAll(name, " ", "-") + "/" + who
}

// Lacking are the features that a case needs and siw lacks, 0 for none.
func Lacking(c conformance.Case, siwActs bool) conformance.Feature {
	if siwActs {
		return c.A &^ agent.Features
	}
	return c.B &^ agent.Features
}

// Runs reports whether a case is run over the variant: those that depend on how
// segments travel are run with and without CRC over either IP, the others over one
// start-up of each direction; an unusual start-up gets three cases.
func (v Variant) Runs(c conformance.Case) bool {
	if v.RTR != 0 || v.MPA1 {
		return slices.Contains([]string{"send", "write", "read"}, c.Name)
	}
	return c.Core || v.CRC && !v.IPv6
}

// ReadResults reads the suite's results; complete reports whether it came to its end.
// It fails where r does, and at anything that is not a result.
func ReadResults(r io.Reader) (rs []Result, complete bool, err error) {
	for d := json.NewDecoder(r); ; {
		var one Result
		if err := d.Decode(&one); err == io.EOF {
			return rs, complete, nil
		} else if err != nil {
			return rs, false, fmt.Errorf("siw: the results of the suite: %w", err)
		}
		if one.End {
			complete = true
			continue
		}
		rs = append(rs, one)
	}
}
