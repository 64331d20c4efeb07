// Command testreport runs the project's tests and reports them so that people
// and programs can read the result.
//
//	go run ./internal/tools/testreport [-summary FILE] [-whole] [PACKAGE...]
//
// It runs go vet and the tests: those of host labs as they are, the others with
// the race detector, and without it what is skipped there (allocation counts are
// only true without it), with -whole everything; with the pattern ./... also the tests of
// the modules that are nested in this one. The attacks of integration/attack are run a second
// time, with the tag "weakened", and every test that the table of RFC 5042 in
// docs/security.md names must have run. No test gets a second try. It prints a line
// per package, the output of failures, the list of skipped tests with their
// reasons, where the time went, and last a line
//
//	N passed, N failed, N skipped
//
// The exit status is 1 if anything failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/internal/tools/howlong"
)

func main() {
	summary := flag.String("summary", "", "also write the closing line to this `file`")
	// The longest takes five minutes where nothing else runs, and five times as long on a slow and busy machine.
	timeout := flag.Duration("timeout", 25*time.Minute, "limit for the tests of one package")
	whole := flag.Bool("whole", false, "run also without the race detector what has passed with it")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{out: os.Stdout, results: newResults(), timeout: *timeout, whole: *whole}
	long := begin(r, patterns)
	ok := r.all(ctx, patterns)
	if ctx.Err() == nil {
		if err := long.End(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	line := r.closingLine()
	if *summary != "" {
		if err := os.WriteFile(*summary, []byte(line+"\n"), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "write the closing line: %v\n", err)
			ok = false
		}
	}
	fmt.Println(line)
	if !ok {
		os.Exit(1)
	}
}

// wholeRun is what make test takes on two processors with nothing else to do.
const wholeRun = 9 * time.Minute

// begin reports how long the run will take.
//
// unlocked: nothing has begun.
func begin(r *runner, patterns []string) *howlong.Run {
	what, first := "make test", time.Duration(0)
	if r.whole {
		what += " ARGS=-whole"
	}
	if p := strings.Join(patterns, " "); p != "./..." {
		what += " PKG='" + p + "'"
	} else if !r.whole {
		first = wholeRun
	}
	return howlong.Begin(r.out, ".cache/times.json", what, first)
}
