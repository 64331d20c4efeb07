// Command bench measures IronWarp beside its rivals on this machine, in one
// run, and prints a table of ratios. `make bench` runs it; README.md in this
// directory says how each row is measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

func main() {
	rows := flag.String("rows", "", "measure only rows whose name matches this `regexp`")
	out := flag.String("out", "bench/latest.json", "`file` for the results as JSON")
	binary := flag.String("ironwarp", "bin/ironwarp", "the `program` whose daemons serve the fio rows")
	cache := flag.String("cache", ".cache/vm", "`directory` of built virtual machines, for the rows beside siw")
	pion := flag.String("pion", ".cache/pion", "the `program` that plays pion's part, for the rows beside it")
	only := flag.String("only", "", "of the chosen rows run only contenders that match this `regexp`, for profiles: there are no ratios")
	old := flag.String("old", "", "the `ironwarp` of another version, beside which the fio rows are measured as well")
	rounds := flag.Int("rounds", 0, "rounds per row instead of each row's own `number`")
	list := flag.Bool("list", false, "list the rows and exit")
	role := flag.String("role", "", "serve as the other end of a row (used by this program itself)")
	listen := flag.String("listen", anyLoopback, "the `address` of a role's server")
	profile := flag.String("cpuprofile", "", "write CPU profiles: of this end to `file`, of a server's to file.ROLE")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		for _, g := range groups(*old) {
			for _, r := range g.rows {
				fmt.Println(r.name)
			}
		}
		return
	}
	pattern, err := regexp.Compile(*rows)
	exitOn(err)
	stopProfile, err := startProfile(*profile)
	exitOn(err)
	if g, ok := guests()[*role]; ok {
		err := g.measure(ctx, &bench{ironwarp: *binary}, flag.Args(), *rounds, *out)
		stopProfile()
		exitOn(err)
		return
	}
	if *role != "" {
		err := serveRole(ctx, *role, *listen)
		stopProfile()
		exitOn(err)
		return
	}
	start := time.Now()
	contenders, err := regexp.Compile(*only)
	exitOn(err)
	b := &bench{only: contenders, ironwarp: *binary, rounds: *rounds, cache: *cache, profile: *profile, pion: *pion}
	b.progress = os.Stderr
	if st, err := os.Stderr.Stat(); err == nil {
		b.terminal = st.Mode()&os.ModeCharDevice != 0
	}
	results, err := b.run(ctx, groups(*old), pattern)
	stopProfile()
	for _, why := range b.leftOut {
		fmt.Fprintln(os.Stderr, "bench: "+why)
	}
	if len(results) > 0 {
		printTable(os.Stdout, results)
		fmt.Printf("%d rows in %s\n", len(results), time.Since(start).Round(time.Second))
		exitOn(writeJSON(*out, results))
	}
	exitOn(err)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}
