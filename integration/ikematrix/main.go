package ikematrix

import (
	"flag"
	"regexp"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Few is the name of the flag for the shorter matrix. It is not -test.short, with which
// no lab runs at all.
const Few = "few"

// Main runs the matrix as a separate program, in the virtual machine, and never
// returns: the exit status is that of go test. It takes the flags of go test, and
//
//	-results FILE   for the report
//	-kernel         it has to be the kernel that does ESP
//	-few            for each value once in place of each pair
func Main() {
	testing.Init()
	few := flag.Bool(Few, false, "each value once in place of each pair")
	results := flag.String("results", "", "`file` for the report, in JSON")
	kernel := flag.Bool("kernel", false, "fail where the kernel has no ESP")
	flag.Parse()
	run := func(t *testing.T) {
		if err := esp.ProbeKernel(); *kernel && err != nil {
			t.Fatal(err)
		}
		r := Run(t, *few)
		t.Log(r.Summary())
		if *results == "" {
			return
		}
		if err := r.Write(*results); err != nil {
			t.Error(err)
		}
	}
	testing.Main(func(pat, s string) (bool, error) { return regexp.MatchString(pat, s) },
		[]testing.InternalTest{{Name: "Matrix", F: run}}, nil, nil)
}
