package ikematrix

import (
	"flag"
	"regexp"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Main runs the matrix as a program of its own, in the virtual machine, and never
// returns: the exit status is that of go test. It takes the flags of go test, and
//
//	-results FILE   for the report
//	-kernel         it has to be the kernel that does ESP
//	-test.short     for each value once in place of each pair
func Main() {
	testing.Init()
	results := flag.String("results", "", "`file` for the report, in JSON")
	kernel := flag.Bool("kernel", false, "fail where the kernel has no ESP")
	flag.Parse()
	run := func(t *testing.T) {
		if err := esp.ProbeKernel(); *kernel && err != nil {
			t.Fatal(err)
		}
		r := Run(t, testing.Short())
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
