package main

import (
	"testing"
	"time"
)

func TestEachModeMovesMessages(t *testing.T) {
	addr, err := serve("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// One after the other: the server has one peer at a time.
	for _, mode := range []string{"write", "ping", "request", "write"} {
		f, err := measure(mode, addr, 1400, 8, 50*time.Millisecond)
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if f.Ops == 0 || f.Seconds < 0.05 || f.CPU == 0 {
			t.Errorf("%s: %+v", mode, f)
		}
		if got := f.Bytes; mode == "write" && got != 1400*f.Ops {
			t.Errorf("%v bytes in %v messages", got, f.Ops)
		}
		if mode == "ping" && f.Median == 0 {
			t.Error("no round trip was measured")
		}
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	for _, c := range []struct {
		mode        string
		size, depth int
	}{{"nothing", 1, 1}, {"write", 0, 1}, {"request", 1, 0}} {
		if _, err := measure(c.mode, "127.0.0.1:1", c.size, c.depth, time.Millisecond); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if err := run([]string{"write"}); err == nil {
		t.Error("no address is accepted")
	}
}
