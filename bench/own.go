package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// idleStreams is how many streams stand open while their memory is measured.
const idleStreams = 1000

// measureIdle opens idleStreams streams, both ends in this process, lets each
// carry a message both ways, and reports what one end of one stream costs.
func measureIdle(v variant) measurement {
	return func(ctx context.Context) (metrics, error) { return idleMemory(ctx, v) }
}

func idleMemory(ctx context.Context, v variant) (metrics, error) {
	s, err := startRDMAServer(ctx, anyLoopback, v)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	h, err := newRDMAHome(s.addr, v)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	clients := make([]*rdmaClient, 0, idleStreams)
	open := func(n int) error {
		for len(clients) < n {
			c, err := h.dial(ctx, rdmaEcho, echoSlot, nil)
			if err != nil {
				return fmt.Errorf("open stream %d: %w", len(clients), err)
			}
			clients = append(clients, c)
			if err := c.sync(ctx); err != nil {
				return fmt.Errorf("stream %d: %w", len(clients), err)
			}
		}
		return nil
	}
	// The first streams bring buffers and tables that all of them share.
	const first = 20
	if err := open(first); err != nil {
		return nil, err
	}
	before, err := residentMemory()
	if err != nil {
		return nil, err
	}
	if err := open(first + idleStreams); err != nil {
		return nil, err
	}
	after, err := residentMemory()
	if err != nil {
		return nil, err
	}
	runtime.KeepAlive(clients)
	return metrics{"resident": (after - before) / idleStreams / 2}, nil
}

// residentMemory is VmRSS in bytes after everything that is free was returned.
func residentMemory() (float64, error) {
	debug.FreeOSMemory()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmRSS")
}

// count decides, as operations are done, when the counting of allocations begins and ends; m has those
// of an operation then.
func (m metrics) count(name string) func(n int) bool {
	const warm, counted = 20_000, 50_000
	var before, after runtime.MemStats
	return func(n int) bool {
		switch n {
		case warm:
			runtime.ReadMemStats(&before)
		case warm + counted:
			runtime.ReadMemStats(&after)
			m[name] = math.Floor(100*float64(after.Mallocs-before.Mallocs)/counted) / 100
			return false
		}
		return n < warm+counted
	}
}

// measureAllocs counts the memory allocations of both ends per operation.
func measureAllocs(v variant) measurement {
	return func(ctx context.Context) (metrics, error) { return allocations(ctx, v) }
}

func allocations(ctx context.Context, v variant) (metrics, error) {
	s, err := startRDMAServer(ctx, anyLoopback, v)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m := metrics{}
	addr := s.addr
	w, err := dialRDMA(ctx, addr, rdmaTarget, v, 64<<10, nil)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.writes(ctx, 64<<10, m.count("Write 64 KiB")); err != nil {
		return nil, err
	}
	p := &pinger{size: 64, more: m.count("Send 64 B")}
	pc, err := p.dial(ctx, addr, v)
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	r := &reader{size: 4 << 10, more: m.count("Read 4 KiB")}
	rc, err := r.dial(ctx, addr, rdmaSource, v, 32)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return m, r.run(ctx, 32)
}
