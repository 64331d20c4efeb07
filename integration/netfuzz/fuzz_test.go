package netfuzz

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// crashFile in the environment names a file that a panic is written to: go test -fuzz
// does not show how a worker ended.
const crashFile = "IRONWARP_FUZZ_CRASH"

func TestMain(m *testing.M) {
	if name := os.Getenv(crashFile); name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			err = debug.SetCrashOutput(f, debug.CrashOptions{})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	goleak.VerifyTestMain(m)
}

// FuzzTCP attacks a daemon over TCP.
func FuzzTCP(f *testing.F) {
	v := newTarget(f)
	for _, in := range seeds() {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: in}
		open := func() *stream { return openTCP(v, s) }
		if first := open(); first != nil {
			play(first, open)
		}
		v.survived(t)
	})
}

// FuzzSCTP attacks a daemon over SCTP in UDP.
func FuzzSCTP(f *testing.F) {
	v := newTarget(f)
	for _, in := range seeds() {
		f.Add(append([]byte{0}, in...))
	}
	for _, raw := range [][]byte{
		{0x07, 1, 0, 0, 0, 0x80, 4, 1, 2, 3, 4, 0, 0}, // another DATA chunk
		{0x07, 1, 0, 3, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{0x07, 1, 0, 6, 0, 0x80, 0, 0, 0}, {0x07, 1, 0, 7, 0, 0, 0, 0, 0}, {0x07, 1, 0, 1, 0, 0x80, 16, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9, 0, 9, 0, 0, 0, 1, 0, 0},
		{0x07, 2, 0, 12, 3, 0}, {0x07, 0x10, 0, 0}, {0x3c},
	} {
		f.Add(append([]byte{0, 0, 0, 0, 0x01, 0, 8, 0, 0}, append(raw, 0x01, 0, 8, 0, 0)...))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: in}
		if a := openSCTP(v, s); a != nil {
			if first := a.open(); first != nil {
				play(first, a.open)
			}
			a.close()
		}
		v.survived(t)
	})
}

// Steps of the seeds; see stream.step. Each has all the bytes that it needs.
func seeds() (all [][]byte) {
	const ping, session = 0x40, 0x41
	pad := []byte{0}
	asPing := []byte{ping, 0, 0, 0}
	asSession := []byte{session, 0, 0, 0}
	p := func(b ...byte) []byte { return append(append(b, 0), pad...) } // not altered, sent whole
	var (
		echo    = append([]byte{0x01, 0, 8}, p()...)
		sink    = append([]byte{0x11, 0, 200}, p()...)
		write   = append([]byte{0x02, 0, 0, 0, 4, 1, 2, 3, 4}, p()...)
		read    = append([]byte{0x13, 0, 0, 200, 0, 0}, p()...)
		atomic  = append([]byte{0x04, 0, 0, 0, 0, 0}, p()...)
		info    = append([]byte{0x0a, 0}, p()...)
		imm     = append([]byte{0x05, 0, 0, 0, 1, 0}, p()...)
		hb      = append([]byte{0x85, 0x80, 0, 0, 0, 0}, p()...)
		invalid = append([]byte{0x10, 0, 0, 4, 1, 2, 3, 4}, p()...)
		term    = append([]byte{0x06, 0, 1, 1}, p()...)
		wait    = []byte{0x1b}
		more    = []byte{0xff}
		half    = []byte{0x0c}
		abort   = []byte{0x2c}
		stall   = []byte{0x0d}
		resume  = []byte{0x1d}
		bytes   = []byte{0x07, 5, 1, 2, 3, 4, 5}
		version = append(append([]byte{0x29, 0}, pad...), append([]byte{0}, p()...)...)
		open    = append(append([]byte{0x29, 1, 1}, pad...), append([]byte{0}, p()...)...)
		readIO  = append(append([]byte{0x29, 2, 0, 3}, pad...), append([]byte{0}, p()...)...)
		writeIO = append(append([]byte{0x29, 3, 0, 4}, pad...), append([]byte{0}, p()...)...)
		closeIO = append(append([]byte{0x29, 4, 0}, pad...), append([]byte{0}, p()...)...)
		list    = append(append([]byte{0x29, 5, 0}, pad...), append([]byte{0}, p()...)...)
	)
	add := func(steps ...[]byte) {
		var in []byte
		for _, s := range steps {
			in = append(in, s...)
		}
		all = append(all, in)
	}
	add(asPing, echo, wait, sink, sink, write, read, wait, atomic)
	add(asPing, echo, invalid)
	add(asPing, read, read, read, stall, read, resume, half)
	add(asPing, term)
	add(asPing, bytes)
	add(asPing, echo, more, asSession, info, []byte{0xf0}, echo, []byte{0xf1}, list)
	add(asSession, info, version, open, readIO, writeIO, closeIO, list, hb)
	add(asSession, info, version, open, writeIO, abort)
	add(asSession, info, imm)
	add(asSession, info, write, wait)
	add(asSession, info, info)
	add(asSession, hb)
	add([]byte{0x43, 8, 'w', 'h', 'o', ' ', 'k', 'n', 'o', 'w', 0, 0}, echo)
	add([]byte{0x40, 0, 0xc2, 0, 0xff, 0}, echo)
	add(nil)
	return all
}
