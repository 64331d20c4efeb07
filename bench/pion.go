package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
)

// pion's SCTP as the rival: a program of its own, transport/sctp/piontest/bench,
// so that this module does not depend on pion. It plays both ends.

// noPion is why there is no pion, or empty.
func (b *bench) noPion() string {
	if _, err := os.Stat(b.pion); err != nil {
		return fmt.Sprintf("%s is missing: make bench builds it if Go can fetch the module github.com/pion/sctp", b.pion)
	}
	return ""
}

// newPion is pion's server. prefix is as for newPeer.
func newPion(b *bench, listen string, like *peer, prefix ...string) *peer {
	p := newPeer("pion", listen, like.time, prefix...)
	p.command = []string{b.pion, "serve", listen}
	return p
}

// pionFigures are what its client prints: bytes in seconds, its own CPU seconds,
// operations, and the median of round trips in seconds.
type pionFigures struct{ Bytes, Seconds, CPU, Ops, Median float64 }

// pionRun runs its client once, after the words of prefix. mode and the other
// arguments are as its documentation has them.
func pionRun(b *bench, server *peer, prefix []string, mode string, size, depth int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		args := append(slices.Clone(prefix), b.pion, mode, "-size", strconv.Itoa(size), "-depth", strconv.Itoa(depth),
			"-time", server.time.String(), server.addr)
		before, err := server.used()
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%v: %w: %s", args, err, stderr.Bytes())
		}
		after, err := server.used()
		if err != nil {
			return nil, err
		}
		var f pionFigures
		if err := json.Unmarshal(out, &f); err != nil {
			return nil, fmt.Errorf("%v: %q is not understood: %w", args, out, err)
		}
		return f.metrics((after - before).Seconds()), nil
	}
}

// metrics adds what the server used.
func (f pionFigures) metrics(server float64) metrics {
	cpu := f.CPU + server
	m := metrics{"rate": f.Bytes / f.Seconds, "ops": f.Ops / f.Seconds, "p50": f.Median}
	if f.Ops > 0 {
		m["each"] = cpu / f.Ops
	}
	return m
}
