package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// Of a copy: how much is moved at a time, and how much of that at once.
const (
	copyPiece = initiator.MaxTransfer
	copyDepth = 8
)

// loginFlags say who logs in to a target, and how it is reached.
func loginFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "initiator", Value: "iqn.2026-01.org.ironwarp:cli", Usage: "iSCSI `NAME` to log in by"},
		&cli.StringFlag{Name: "chap-user", Usage: "`NAME` in CHAP"},
		&cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with the secret, mode 0600"},
		&cli.StringFlag{Name: "target-secret-file", Usage: "`FILE` with the secret by which the target proves itself, mode 0600"},
		&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "`TIME` within which a login has to succeed"},
		&cli.BoolFlag{Name: "insecure-plaintext", Usage: "reach other hosts in clear: for labs only"},
	}, more...)
}

const unitURL = "URL is iscsi://HOST[:PORT]/IQN/LUN. Needs no daemon, except to reach another host in ESP: its port has to be the iSCSI port of a peer.\n"

func (w *ironwarp) iscsiDiskCommands() []*cli.Command {
	return []*cli.Command{{
		Name: "cat", Usage: "write what is on a logical unit to the standard output", ArgsUsage: "URL", Action: w.iscsiCat, Description: unitURL,
		Flags: loginFlags(&cli.StringFlag{Name: "offset", Value: "0", Usage: "`BYTES` to begin behind, as 1MiB"},
			&cli.StringFlag{Name: "length", Usage: "`BYTES` to write (default: all that follows)"}),
	}, {
		Name: "cp", Usage: "copy a logical unit, or to one", ArgsUsage: "SOURCE DESTINATION", Action: w.iscsiCopy,
		Description: unitURL + "SOURCE and DESTINATION are such URLs, files, block devices, or - for the standard input or output. What was on the destination is\n" +
			"lost; a unit that is longer than the source keeps the rest. A copy to a unit has ended when it is on its medium.",
		Flags: loginFlags(),
	}, {
		Name: "bench", Usage: "measure a logical unit", ArgsUsage: "URL", Action: w.iscsiBench, Description: unitURL + "It is read; --writes destroys what is on it.",
		Flags: loginFlags(jsonFlag(),
			&cli.IntFlag{Name: "depth", Value: 32, Usage: "`NUMBER` of commands at a time, 1 to 1024"},
			&cli.StringFlag{Name: "size", Value: "4KiB", Usage: "`BYTES` of each, up to 1MiB"},
			&cli.IntFlag{Name: "writes", Usage: "`PERCENT` of the commands that write, for which --dataloss is needed"},
			&cli.BoolFlag{Name: "dataloss", Usage: "allow --writes to destroy what is on the unit"},
			&cli.BoolFlag{Name: "sequential", Usage: "one place after the other (default: random ones)"},
			&cli.DurationFlag{Name: "time", Value: 10 * time.Second, Usage: "`TIME` to measure for"}),
	}}
}

const stdout = "the standard output"

// isUnit reports whether an argument names a logical unit.
func isUnit(s string) bool { return strings.Contains(s, "://") }

// openUnit logs in to the unit of a URL.
func (w *ironwarp) openUnit(c *cli.Context, url string) (*initiator.Session, error) {
	t, err := iscsitest.ParseURL(url)
	if err != nil {
		return nil, &usageError{msg: err.Error()}
	}
	if t.Over != iscsitest.TCP {
		return nil, &usageError{msg: fmt.Sprintf("%s: this goes over TCP only", url), fix: "begin the URL with iscsi://"}
	}
	if !iscsi.IsName(c.String("initiator")) {
		return nil, &usageError{msg: fmt.Sprintf("--initiator %q is no iSCSI name", c.String("initiator")), fix: "iqn.2026-01.org.example:me, for example"}
	}
	who, err := w.credentials(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	at, err := w.mayReach(ctx, c, t.Address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("the target can't be reached: %w", err)
	}
	s, err := initiator.Login(ctx, nc, initiator.Config{Initiator: c.String("initiator"), CHAP: who, Target: t.Name, LUN: t.LUN})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	context.AfterFunc(c.Context, func() { s.Close() }) // a target that hangs holds nobody up who has pressed Ctrl-C
	return s, nil
}

// side is one side of a copy.
type side struct {
	name   string
	size   int64 // -1: not known
	block  int64 // of a unit, 0: any number of bytes will do
	unit   *initiator.Session
	file   *os.File
	stream bool // one piece after the other
	fresh  bool // a file that was cut to nothing: zeroes need not be written
}

func (s *side) close() error {
	if s.unit != nil {
		return s.unit.Close()
	}
	return s.file.Close()
}

// read reads any number of bytes, and fewer only at the end.
func (s *side) read(p []byte, off int64) (int, error) {
	switch {
	case s.stream:
		n, err := io.ReadFull(s.file, p)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		return n, err
	case s.unit == nil:
		return s.file.ReadAt(p, off)
	}
	first := off &^ (s.block - 1)
	end := min((off+int64(len(p))+s.block-1)&^(s.block-1), s.size)
	if first == off && end == off+int64(len(p)) {
		return s.unit.ReadAt(p, off)
	}
	b := make([]byte, end-first)
	if _, err := s.unit.ReadAt(b, first); err != nil {
		return 0, err
	}
	return copy(p, b[off-first:]), nil
}

// write writes any number of bytes, at a multiple of the blocks.
func (s *side) write(p []byte, off int64) error {
	switch {
	case s.stream:
		_, err := s.file.Write(p)
		return err
	case s.unit == nil:
		if s.fresh && len(bytes.TrimLeft(p, "\x00")) == 0 {
			return nil
		}
		_, err := s.file.WriteAt(p, off)
		return err
	}
	if odd := int64(len(p)) & (s.block - 1); odd != 0 { // the last block keeps its rest
		last := make([]byte, s.block)
		at := off + int64(len(p)) - odd
		if _, err := s.unit.ReadAt(last, at); err != nil {
			return err
		}
		copy(last, p[int64(len(p))-odd:])
		if _, err := s.unit.WriteAt(last, at); err != nil {
			return err
		}
		p = p[:int64(len(p))-odd]
	}
	_, err := s.unit.WriteAt(p, off)
	return err
}

// openSide opens a side of a copy. A file that is written is cut to nothing, and made as long as the source.
func (w *ironwarp) openSide(c *cli.Context, name string, writes bool, source *side) (s *side, err error) {
	s = &side{name: name, size: -1}
	switch {
	case isUnit(name):
		if s.unit, err = w.openUnit(c, name); err != nil {
			return nil, err
		}
		s.size, s.block = s.unit.Size(), int64(s.unit.BlockLen)
		return s, nil
	case name == "-":
		s.stream, s.file, s.name = true, os.Stdin, "the standard input"
		if writes {
			s.file, s.name = os.Stdout, stdout
		}
		return s, nil
	case !writes:
		s.file, err = os.Open(name)
	default:
		s.file, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, err
	}
	st, err := s.file.Stat()
	if err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	switch {
	case st.Mode().IsRegular() && writes:
		s.fresh = true
		err = errors.Join(s.file.Truncate(0), s.file.Truncate(max(source.size, 0)))
	case st.Mode().IsRegular(), st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0:
		s.size, err = s.file.Seek(0, io.SeekEnd)
	default:
		s.stream = true
	}
	if err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

func (w *ironwarp) iscsiCat(c *cli.Context) error {
	offset, err := config.ParseSize(c.String("offset"))
	if err != nil || offset < 0 {
		return &usageError{msg: fmt.Sprintf("--offset %q is no number of bytes", c.String("offset"))}
	}
	if c.Args().Len() != 1 || !isUnit(c.Args().First()) {
		return &usageError{msg: "which unit?", fix: "ironwarp iscsi cat iscsi://HOST[:PORT]/IQN/LUN"}
	}
	from, err := w.openSide(c, c.Args().First(), false, nil)
	if err != nil {
		return err
	}
	length := from.size - offset
	if c.IsSet("length") {
		if length, err = config.ParseSize(c.String("length")); err != nil || length < 0 {
			return errors.Join(&usageError{msg: fmt.Sprintf("--length %q is no number of bytes", c.String("length"))}, from.close())
		}
	}
	if length < 0 || length > from.size-offset {
		return errors.Join(&usageError{msg: fmt.Sprintf("the unit has %d bytes: there are no %d from %d on", from.size, max(length, 0), offset)}, from.close())
	}
	to := &side{name: stdout, size: -1, stream: true, file: os.Stdout}
	return errors.Join(w.transfer(c, from, to, offset, length), from.close())
}

func (w *ironwarp) iscsiCopy(c *cli.Context) (err error) {
	if c.Args().Len() != 2 || !isUnit(c.Args().Get(0)) && !isUnit(c.Args().Get(1)) {
		return &usageError{msg: "a copy is from one place to another, one of which is a unit", fix: "ironwarp iscsi cp iscsi://HOST[:PORT]/IQN/LUN FILE"}
	}
	from, err := w.openSide(c, c.Args().Get(0), false, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	to, err := w.openSide(c, c.Args().Get(1), true, from)
	if err != nil {
		return err
	}
	if to.size >= 0 && from.size > to.size {
		return errors.Join(&usageError{msg: fmt.Sprintf("%s has %d bytes, and %s only %d: nothing was written", from.name, from.size, to.name, to.size)}, to.close())
	}
	err = w.transfer(c, from, to, 0, from.size)
	switch {
	case err != nil:
	case to.unit != nil:
		err = to.unit.Flush()
	case !to.stream:
		err = to.file.Sync()
	}
	return errors.Join(err, to.close())
}

// transfer is move, and returns when it is no longer wanted although a pipe or a terminal gives or takes nothing.
func (w *ironwarp) transfer(c *cli.Context, from, to *side, offset, length int64) error {
	over := make(chan error, 1)
	go func() { over <- w.move(c, from, to, offset, length) }()
	select {
	case err := <-over:
		return err
	case <-c.Context.Done():
		if from.stream || to.stream {
			return c.Context.Err()
		}
		return <-over
	}
}

// move moves bytes from an offset of one side to the beginning of another; length is -1 if the source's end says it.
func (w *ironwarp) move(c *cli.Context, from, to *side, offset, length int64) error {
	var (
		done   atomic.Int64
		failed atomic.Pointer[error]
		all    sync.WaitGroup
		began  = time.Now()
		p      = &progress{w: w}
		memory = make(chan []byte, copyDepth)
		before = make(chan struct{}) // the piece before has been written
	)
	close(before)
	for range copyDepth {
		memory <- make([]byte, copyPiece)
	}
	fail := func(err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for at := int64(0); (length < 0 || at < length) && failed.Load() == nil && c.Context.Err() == nil; {
		var b []byte
		for b == nil {
			select {
			case b = <-memory:
			case <-ticks.C:
				if w.errTerminal {
					p.show(copied(done.Load(), length, time.Since(began)))
				}
			}
		}
		if length >= 0 {
			b = b[:min(int64(len(b)), length-at)]
		}
		if from.stream {
			n, err := from.read(b, 0)
			if fail(err); n == 0 || err != nil {
				break
			}
			b = b[:n]
		}
		if to.size >= 0 && at+int64(len(b)) > to.size {
			fail(fmt.Errorf("%s has %d bytes, and %s has more: what fits was written", to.name, to.size, from.name))
			break
		}
		mine, turn, off := before, make(chan struct{}), at
		before = turn
		at += int64(len(b))
		all.Go(func() {
			defer func() { close(turn); memory <- b[:cap(b)] }()
			if !from.stream {
				if n, err := from.read(b, offset+off); n < len(b) {
					fail(fmt.Errorf("%s ends after %d bytes: %w", from.name, offset+off+int64(n), errors.Join(err, io.ErrUnexpectedEOF)))
					return
				}
			}
			if to.stream {
				<-mine
			}
			if failed.Load() != nil {
				return
			}
			fail(to.write(b, off))
			done.Add(int64(len(b)))
		})
	}
	all.Wait()
	p.end()
	if err := failed.Load(); err != nil {
		return *err
	}
	return c.Context.Err()
}

// copied says how far a copy is.
func copied(done, length int64, took time.Duration) string {
	s := bytesText(float64(done))
	if length > 0 {
		s = fmt.Sprintf("%d %%, %s of %s", done*100/length, s, bytesText(float64(length)))
	}
	return s + ", " + rateText(float64(done)/took.Seconds())
}

// latencies counts times by their 7 highest bits: what is said of them is right within 1.6 %.
type latencies struct {
	class [64 * 60]uint64
	n     uint64
	max   time.Duration
}

func (l *latencies) add(d time.Duration) {
	v := uint64(max(d, 0))
	e := max(bits.Len64(v)-7, 0)
	l.class[64*e+int(v>>e)]++
	l.n++
	l.max = max(l.max, d)
}

func (l *latencies) merge(o *latencies) {
	for i, n := range o.class {
		l.class[i] += n
	}
	l.n += o.n
	l.max = max(l.max, o.max)
}

// quantile is the time that a part q of all do not exceed, in microseconds.
func (l *latencies) quantile(q float64) float64 {
	left := uint64(math.Ceil(q * float64(l.n)))
	for i, n := range l.class {
		if n >= left && n > 0 {
			e := max(i/64-1, 0)
			return float64(min(uint64(i-64*e+1)<<e-1, uint64(l.max))) / 1e3
		}
		left -= min(left, n)
	}
	return 0
}

// benchOf is what one kind of command has come to.
type benchOf struct {
	Ops         uint64  `json:"ops"`
	OpsSecond   float64 `json:"ops_per_second"`
	BytesSecond float64 `json:"bytes_per_second"`
	P50         float64 `json:"p50_us"`
	P95         float64 `json:"p95_us"`
	P99         float64 `json:"p99_us"`
	P999        float64 `json:"p999_us"`
	Max         float64 `json:"max_us"`
}

// benchReport is what a measurement has come to.
type benchReport struct {
	Target  string   `json:"target"`
	Depth   int      `json:"depth"`
	Size    int64    `json:"size_bytes"`
	Seconds float64  `json:"seconds"`
	Reads   *benchOf `json:"reads,omitempty"`
	Writes  *benchOf `json:"writes,omitempty"`
	CPU     float64  `json:"cpu_us_per_op"` // of this program
}

func (l *latencies) report(size int64, took time.Duration) *benchOf {
	if l.n == 0 {
		return nil
	}
	each := float64(l.n) / took.Seconds()
	return &benchOf{Ops: l.n, OpsSecond: each, BytesSecond: each * float64(size), P50: l.quantile(0.5), P95: l.quantile(0.95), P99: l.quantile(0.99), P999: l.quantile(0.999), Max: float64(l.max) / 1e3}
}

func (w *ironwarp) iscsiBench(c *cli.Context) error {
	depth, percent, length := c.Int("depth"), c.Int("writes"), c.Duration("time")
	size, err := config.ParseSize(c.String("size"))
	switch {
	case c.Args().Len() != 1 || !isUnit(c.Args().First()):
		return &usageError{msg: "which unit?", fix: "ironwarp iscsi bench iscsi://HOST[:PORT]/IQN/LUN"}
	case err != nil, size < 1, size > initiator.MaxTransfer:
		return &usageError{msg: fmt.Sprintf("--size %q is not between a block and 1MiB", c.String("size"))}
	case depth < 1, depth > 1024:
		return &usageError{msg: "--depth is between 1 and 1024"}
	case percent < 0, percent > 100:
		return &usageError{msg: "--writes is a percentage"}
	case length <= 0:
		return &usageError{msg: "--time has to be more than 0"}
	case percent > 0 && !c.Bool("dataloss"):
		return &usageError{msg: "--writes destroys what is on the unit", fix: "--dataloss allows that"}
	}
	s, err := w.openUnit(c, c.Args().First())
	if err != nil {
		return err
	}
	places := s.Size() / size
	if size%int64(s.BlockLen) != 0 || places == 0 {
		return errors.Join(&usageError{msg: fmt.Sprintf("the unit has %d blocks of %d bytes: --size %d does not fit", s.Blocks, s.BlockLen, size)}, s.Close())
	}
	var (
		mu            sync.Mutex
		reads, writes latencies
		failed        error
		all           sync.WaitGroup
		turn          atomic.Int64
		began         = time.Now()
		before        = cpuTime()
	)
	if depth == 1 { // then nothing runs beside anything, and a wake-up of another processor is all that more than one would do
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	for range depth {
		all.Go(func() {
			var mine [2]latencies
			var err error
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
			for err == nil && time.Since(began) < length && c.Context.Err() == nil {
				place := turn.Add(1) % places
				if !c.Bool("sequential") {
					place = rand.Int64N(places)
				}
				kind, do := 0, s.ReadAt
				if rand.IntN(100) < percent {
					kind, do = 1, s.WriteAt
				}
				at := time.Now()
				if _, err = do(b, place*size); err == nil {
					mine[kind].add(time.Since(at))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			reads.merge(&mine[0])
			writes.merge(&mine[1])
			if failed == nil {
				failed = err
			}
		})
	}
	all.Wait()
	took, cpu := time.Since(began), cpuTime()-before
	if err := errors.Join(failed, c.Context.Err(), s.Close()); err != nil {
		return err
	}
	r := &benchReport{Target: c.Args().First(), Depth: depth, Size: size, Seconds: took.Seconds(), Reads: reads.report(size, took), Writes: writes.report(size, took),
		CPU: float64(cpu.Microseconds()) / float64(max(reads.n+writes.n, 1))}
	return w.print(c, r, func() {
		for _, x := range []struct {
			name string
			b    *benchOf
		}{{"reads", r.Reads}, {"writes", r.Writes}} {
			if b := x.b; b != nil {
				w.printf("%-6s %s op/s, %s; latency p50 %s, p95 %s, p99 %s, p99.9 %s, max %s\n", x.name, countText(b.OpsSecond), rateText(b.BytesSecond),
					microsText(b.P50), microsText(b.P95), microsText(b.P99), microsText(b.P999), microsText(b.Max))
			}
		}
		w.printf("processor time of this end: %s an operation\n", microsText(r.CPU))
	})
}

// cpuTime is the processor time that this program has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
