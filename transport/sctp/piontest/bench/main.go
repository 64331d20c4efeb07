// Command bench is pion's SCTP in UDP as a rival in IronWarp's speed table, whose
// program starts it. It stands in this module so that IronWarp does not depend on
// pion.
//
//	bench serve ADDRESS
//	bench MODE -size N -depth N -time D ADDRESS
//
// MODE is write, ping or request. The client prints its figures as JSON; the
// server prints its address, and then, for each line that it reads, the CPU time
// that it has used.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "pion: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("serve, write, ping or request is expected")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	size := f.Int("size", 1400, "`bytes` of a message")
	depth := f.Int("depth", 1, "`number` of requests outstanding")
	d := f.Duration("time", 700*time.Millisecond, "how long to send")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("an address is expected")
	}
	if args[0] == "serve" {
		return serveProcess(f.Arg(0))
	}
	m, err := measure(args[0], f.Arg(0), *size, *depth, *d)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

// serveProcess serves until standard input ends.
func serveProcess(listen string) error {
	addr, err := serve(listen)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(struct{ Addr string }{addr}); err != nil {
		return err
	}
	for in := bufio.NewReader(os.Stdin); ; {
		if _, err := in.ReadString('\n'); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(struct{ CPU time.Duration }{cpu()}); err != nil {
			return err
		}
	}
}

// cpu is the user and system time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is nothing that could be wrong
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
