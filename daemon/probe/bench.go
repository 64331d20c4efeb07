package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ironwarp/ironwarp/verbs"
)

// Row is one measurement of a benchmark.
type Row struct {
	Op    string
	Size  int // bytes of one operation
	Depth int // operations outstanding

	Operations uint64
	Elapsed    time.Duration
	Latency    *hdrhistogram.Histogram // of one operation, nil where it is not observable
}

// Rows are the measurements that Bench makes, in order.
func Rows() []Row {
	return []Row{
		{Op: "write", Size: 1 << 20, Depth: 4},
		{Op: "write", Size: 64 << 10, Depth: 16},
		{Op: "read", Size: 64 << 10, Depth: 16},
		{Op: "read", Size: 4 << 10, Depth: depth},
		{Op: "read", Size: 4 << 10, Depth: 1},
		{Op: "send", Size: 64 << 10, Depth: 16},
		{Op: "send and back", Size: 64, Depth: 1},
	}
}

// begins reports whether another operation begins before end. The first one always does: a row without any, of a machine that was busy
// meanwhile, would say that nothing is carried. outstanding are those that have begun and are not counted.
func (r *Row) begins(outstanding int, end time.Time) bool {
	return r.Operations == 0 && outstanding == 0 || time.Now().Before(end)
}

// Bench measures one row for about d. silence bounds the time without any completion.
// It fails with ErrSilent, ctx's error, or that of the stream.
func (c *Client) Bench(ctx context.Context, r *Row, d, silence time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d+silence, ErrSilent)
	defer cancel()
	var err error
	begin := time.Now()
	switch r.Op {
	case "write":
		err = c.writes(ctx, r, begin.Add(d))
	case "read":
		err = c.reads(ctx, r, begin.Add(d))
	case "send":
		err = c.sends(ctx, r, begin.Add(d))
	case "send and back":
		err = c.echoes(ctx, r, begin.Add(d), silence)
	default:
		err = fmt.Errorf("no benchmark of %q", r.Op)
	}
	r.Elapsed = time.Since(begin)
	if errors.Is(err, context.DeadlineExceeded) && context.Cause(ctx) == ErrSilent {
		err = fmt.Errorf("%w: %s of %d bytes did not end within %v", ErrSilent, r.Op, r.Size, d+silence)
	}
	return err
}

// writes keeps Writes outstanding and ends with a Read, which the peer answers
// after it has placed them (RFC 5040 section 5.5).
func (c *Client) writes(ctx context.Context, r *Row, end time.Time) error {
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, RemoteSTag: c.offer.STag, SGL: []verbs.SGE{{MR: c.res.region, Len: uint32(min(r.Size, int(c.offer.Length)))}}}
	outstanding := 0
	for {
		for outstanding < r.Depth && r.begins(outstanding, end) {
			if err := c.QP.PostSend(&wr); err != nil {
				return err
			}
			outstanding++
		}
		if outstanding == 0 {
			break
		}
		wc, err := c.wait(ctx)
		if err != nil {
			return err
		}
		if wc.Op == verbs.WCWrite {
			outstanding--
			r.Operations++
		}
	}
	_, err := c.roundTrip(ctx, false, 1, time.Until(end)+time.Minute)
	return err
}

// reads keeps Reads outstanding. They end in order, so the oldest began first.
func (c *Client) reads(ctx context.Context, r *Row, end time.Time) error {
	r.Latency = NewHistogram()
	began := make([]time.Time, 0, r.Depth)
	limit := min(r.Depth, c.QP.ORD())
	for {
		for len(began) < limit && r.begins(len(began), end) {
			began = append(began, time.Now())
			if err := c.read(r.Size, verbs.More); err != nil {
				return err
			}
		}
		if len(began) == 0 {
			return nil
		}
		c.QP.Flush()
		wc, err := c.wait(ctx)
		if err != nil {
			return err
		}
		if wc.Op == verbs.WCRead {
			record(r.Latency, time.Since(began[0]))
			began = append(began[:0], began[1:]...)
			r.Operations++
		}
	}
}

// sends keeps messages outstanding that the peer counts.
func (c *Client) sends(ctx context.Context, r *Row, end time.Time) error {
	limit := int(c.offer.Window)
	for {
		for c.unacked < limit && r.begins(0, end) {
			if err := c.send(sinkSlot, min(r.Size, int(c.offer.MaxMessage)), verbs.More); err != nil {
				return err
			}
			r.Operations++
		}
		c.QP.Flush()
		if !time.Now().Before(end) && c.unacked < ackEvery {
			// What is left is less than the peer counts at once.
			_, err := c.roundTrip(ctx, false, 1, time.Minute)
			return err
		}
		wc, err := c.wait(ctx)
		if err != nil {
			return err
		}
		if wc.Op == verbs.WCRecv {
			if _, err := c.received(wc); err != nil {
				return err
			}
		}
	}
}

func (c *Client) echoes(ctx context.Context, r *Row, end time.Time, silence time.Duration) error {
	r.Latency = NewHistogram()
	for r.begins(0, end) {
		d, err := c.roundTrip(ctx, true, r.Size, silence)
		if err != nil {
			return err
		}
		record(r.Latency, d)
		r.Operations++
	}
	return nil
}
