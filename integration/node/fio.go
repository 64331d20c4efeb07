package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Load is what fio does to an attached disk: it writes the first Size bytes at random,
// 64 KiB at a time and eight at once, reads all of it back and compares, pass after
// pass. Each sector is a header with its place and pass, followed by the lab's canary,
// so that a misplaced or old one is found.
type Load struct {
	URI     string
	Size    int64
	Timeout time.Duration // of all passes together
	Latency bool          // keep when each I/O ended
	// Pause is how long fio waits after every PauseEvery I/Os; 0: never.
	Pause      time.Duration
	PauseEvery int
}

// Done is what the passes of a Load have done.
type Done struct {
	Passes        int
	Written, Read int64 // bytes; all that was read was compared
	// Ends has a list for each pass: when its I/Os ended and how long they took. There is
	// no I/O between passes.
	Ends [][]End
}

// End is the end of one I/O, to the millisecond.
type End struct {
	At   time.Time
	Took time.Duration
}

// Run runs passes until stop is closed, and finishes the one that runs then. It fails
// with ctx's error or after Timeout, and where fio fails.
func (l Load) Run(ctx context.Context, n *Node, stop <-chan struct{}) (done Done, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	dir, err := os.MkdirTemp(n.Dir(), "fio")
	if err != nil {
		return done, err
	}
	defer os.RemoveAll(dir)
	for {
		done.Passes++
		args := []string{"--name=verified", "--ioengine=nbd", "--uri=" + l.URI,
			"--rw=randwrite", "--bs=64k", "--iodepth=8", "--size=" + strconv.FormatInt(l.Size, 10),
			"--randseed=" + strconv.Itoa(done.Passes), "--verify=crc32c", "--verify_interval=512", "--verify_pattern=\"" + string(n.Canary()) + "\"", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--output-format=json"}
		latency := filepath.Join(dir, strconv.Itoa(done.Passes))
		if l.Latency {
			args = append(args, "--log_unix_epoch=1", "--write_lat_log="+latency)
		}
		if l.Pause > 0 {
			args = append(args, "--thinktime="+strconv.FormatInt(l.Pause.Microseconds(), 10), "--thinktime_blocks="+strconv.Itoa(l.PauseEvery))
		}
		cmd := n.Command(ctx, "fio", args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return done, fmt.Errorf("fio, pass %d: %w: %s%s", done.Passes, errors.Join(err, context.Cause(ctx)), stderr.Bytes(), firstLines(stdout.Bytes(), 5))
		}
		if err := done.add(stdout.Bytes()); err != nil {
			return done, fmt.Errorf("fio, pass %d: %w", done.Passes, err)
		}
		if l.Latency {
			ends, err := readEnds(latency + "_lat.1.log")
			if err != nil {
				return done, fmt.Errorf("fio, pass %d: %w", done.Passes, err)
			}
			done.Ends = append(done.Ends, ends)
		}
		select {
		case <-stop:
			return done, nil
		default:
		}
	}
}

func firstLines(b []byte, n int) []byte {
	for i, c := range b {
		if c == '\n' {
			if n--; n == 0 {
				return b[:i]
			}
		}
	}
	return b
}

// add takes fio's report, which must say that there was no error and that all
// that was written was read back.
func (d *Done) add(report []byte) error {
	var r struct {
		Jobs []struct {
			Error int
			Read  struct {
				Bytes int64 `json:"io_bytes"`
			}
			Write struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	if i := bytes.IndexByte(report, '{'); i > 0 {
		report = report[i:] // warnings precede the report
	}
	if err := json.Unmarshal(report, &r); err != nil || len(r.Jobs) != 1 {
		return fmt.Errorf("its report is not understood: %v", err)
	}
	j := r.Jobs[0]
	if j.Error != 0 || j.Write.Bytes == 0 || j.Read.Bytes < j.Write.Bytes {
		return fmt.Errorf("error %d; %d bytes written, %d verified", j.Error, j.Write.Bytes, j.Read.Bytes)
	}
	d.Written += j.Write.Bytes
	d.Read += j.Read.Bytes
	return nil
}

// readEnds reads fio's log of latencies: Unix time in ms, latency in ns, and
// more.
func readEnds(path string) (ends []End, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		field := strings.SplitN(s.Text(), ", ", 3)
		if len(field) < 3 {
			return nil, fmt.Errorf("%s: the line %q is not understood", path, s.Text())
		}
		at, err1 := strconv.ParseInt(field[0], 10, 64)
		took, err2 := strconv.ParseInt(field[1], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		ends = append(ends, End{time.UnixMilli(at), time.Duration(took)})
	}
	return ends, s.Err()
}

// Stall is a time in which I/O was under way and none ended.
type Stall struct {
	Mark int // which of the marks it follows
	From time.Time
	For  time.Duration
}

// Stalls returns for each moment of marks (in order) the longest stall that began after
// it and before the next. One in which a pass began is left out, as there was no I/O
// for a part of it; so is a moment after the last I/O.
func (d *Done) Stalls(marks []time.Time) []Stall {
	longest := make([]Stall, len(marks))
	seen := make([]bool, len(marks))
	for _, pass := range d.Ends {
		i := -1
		for k := 1; k < len(pass); k++ {
			from, to := pass[k-1].At, pass[k].At
			// The first mark within this gap owns it, else the mark before it.
			owner := i
			for i+1 < len(marks) && marks[i+1].Before(to) {
				if i++; owner < 0 || !marks[owner].After(from) {
					owner = i
				}
			}
			if owner < 0 {
				continue
			}
			if marks[owner].After(from) {
				from = marks[owner] // the mark did not cause what came before it
			}
			seen[owner] = true
			if gap := to.Sub(from); gap > longest[owner].For {
				longest[owner] = Stall{owner, from, gap}
			}
		}
	}
	var out []Stall
	for i, s := range longest {
		if seen[i] {
			out = append(out, s)
		}
	}
	return out
}
