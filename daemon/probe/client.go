package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ironwarp/ironwarp/verbs"
)

// Slots of a client's messages beyond those that receive.
const (
	echoSlot = window + 1
	sinkSlot = window + 2
)

// Client is a stream to a peer's service. It is used by one goroutine.
type Client struct {
	QP *verbs.QP

	res   *resources
	cq    *verbs.CQ
	offer offer
	wcs   [64]verbs.WC
	next  int // of the polled completions
	have  int

	unacked int // messages that were neither echoed nor counted
	sunk    uint32
}

// Dial connects to a peer's service as ulp. The private data, IRD and ORD of dial are
// set here. It fails with the reason of a peer that refuses, and as verbs' Dial does.
func Dial(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig) (_ *Client, err error) {
	res, err := newResources(ulp, verbs.NSNT, make([]byte, RegionSize+(window+3)*MaxMessage), verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	c := &Client{res: res}
	res.msgs.Bytes()[echoSlot*MaxMessage] = tagEcho
	res.msgs.Bytes()[sinkSlot*MaxMessage] = tagSink
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.cq, err = ulp.CreateCQ(4*window+8, nil); err != nil {
		return nil, err
	}
	dial.PrivateData = appendRequest(nil)
	dial.QP = verbs.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSend: 2*window + 2, MaxRecv: window + 1, IRD: depth, ORD: depth}
	dial.Prepare = func(qp *verbs.QP) error {
		for slot := range window + 1 {
			if err := c.post(qp, slot); err != nil {
				return err
			}
		}
		return nil
	}
	qp, err := res.pd.Dial(ctx, dial)
	var rejected *verbs.RejectedError
	if errors.As(err, &rejected) {
		return nil, fmt.Errorf("%s: %s", dial.Remote, refusalText(rejected.PrivateData))
	}
	if err != nil {
		return nil, err
	}
	c.QP = qp
	if err := c.offer.Parse(qp.PrivateData()); err != nil {
		return nil, fmt.Errorf("%s: the ping service's answer: %w", dial.Remote, err)
	}
	return c, nil
}

// Close ends the stream and frees what it used.
func (c *Client) Close() error {
	if c.QP != nil {
		ctx, cancel := context.WithTimeout(context.Background(), partTime)
		defer cancel()
		_ = c.QP.Shutdown(ctx)
	}
	var err error
	if c.cq != nil {
		err = c.cq.Destroy()
		c.cq = nil
	}
	if c.res != nil {
		err = errors.Join(err, c.res.free())
		c.res = nil
	}
	return err
}

func (c *Client) post(qp *verbs.QP, slot int) error {
	return qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: c.res.msgs, Off: uint32(slot * MaxMessage), Len: MaxMessage}}})
}

// wait returns the next completion.
func (c *Client) wait(ctx context.Context) (*verbs.WC, error) {
	for c.next == c.have {
		if c.have = c.cq.Poll(c.wcs[:]); c.have > 0 {
			c.next = 0
			break
		}
		c.next = 0
		if err := c.cq.Wait(ctx); err != nil {
			return nil, err
		}
	}
	wc := &c.wcs[c.next]
	c.next++
	return wc, wc.Err
}

// received handles a message and reports whether it was an echo.
func (c *Client) received(wc *verbs.WC) (echo bool, err error) {
	msg := c.res.msgs.Bytes()[int(wc.ID)*MaxMessage:][:wc.Len]
	switch count, ok := parseAck(msg); {
	case ok && count-c.sunk <= uint32(c.unacked):
		c.unacked -= int(count - c.sunk)
		c.sunk = count
	case len(msg) > 0 && msg[0] == tagEcho && c.unacked > 0:
		c.unacked--
		echo = true
	default:
		return false, fmt.Errorf("the ping service sent %d bytes that nobody asked for", len(msg))
	}
	return echo, c.post(c.QP, int(wc.ID))
}

// send posts the message of a slot, cut to size bytes.
func (c *Client) send(slot, size int, flags verbs.Flags) error {
	c.unacked++
	return c.QP.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: flags, SGL: []verbs.SGE{{MR: c.res.msgs, Off: uint32(slot * MaxMessage), Len: uint32(size)}}})
}

// Ping is one series of round trips.
type Ping struct {
	Send     bool // Sends that come back, else RDMA Reads
	Size     int  // bytes, 1 to MaxMessage for Sends, to RegionSize for Reads
	Count    int
	Interval time.Duration
}

// Check fails for parameters that are out of range.
func (p Ping) Check() error {
	limit := RegionSize
	if p.Send {
		limit = MaxMessage
	}
	switch {
	case p.Size < 1 || p.Size > limit:
		return fmt.Errorf("size %d is out of range; allowed: 1 to %d bytes", p.Size, limit)
	case p.Count < 1 || p.Count > MaxCount:
		return fmt.Errorf("count %d is out of range; allowed: 1 to %d", p.Count, MaxCount)
	case p.Interval < 0 || p.Interval > MaxInterval:
		return fmt.Errorf("interval %v is out of range; allowed: 0 to %v", p.Interval, MaxInterval)
	}
	return nil
}

// maxTrip is the longest round trip that a histogram takes, in nanoseconds; a
// stream may be paused for that long.
const maxTrip = int64(time.Hour)

// NewHistogram returns an empty histogram of times in nanoseconds.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, maxTrip, 3) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// Within its range Record does not fail.
	_ = h.RecordValue(max(1, min(int64(d), maxTrip)))
}

// Ping measures round trips into h and calls each, which may be nil, after
// every one. silence bounds one round trip.
func (c *Client) Ping(ctx context.Context, p Ping, silence time.Duration, h *hdrhistogram.Histogram, each func(seq int, d time.Duration)) error {
	if err := p.Check(); err != nil {
		return err
	}
	var tick <-chan time.Time
	if p.Interval > 0 {
		t := time.NewTicker(p.Interval)
		defer t.Stop()
		tick = t.C
	}
	for seq := 1; seq <= p.Count; seq++ {
		d, err := c.roundTrip(ctx, p.Send, p.Size, silence)
		if err != nil {
			return err
		}
		record(h, d)
		if each != nil {
			each(seq, d)
		}
		if tick != nil && seq < p.Count {
			select {
			case <-tick:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// ErrSilent means that the peer did not answer in time.
var ErrSilent = errors.New("the peer did not answer in time")

// roundTrip makes one round trip.
func (c *Client) roundTrip(ctx context.Context, send bool, size int, silence time.Duration) (time.Duration, error) {
	tctx, cancel := context.WithTimeoutCause(ctx, silence, ErrSilent)
	defer cancel()
	begin := time.Now()
	var err error
	if send {
		err = c.send(echoSlot, size, 0)
	} else {
		err = c.read(size, 0)
	}
	for err == nil {
		var wc *verbs.WC
		if wc, err = c.wait(tctx); err != nil {
			break
		}
		done := wc.Op == verbs.WCRead
		if wc.Op == verbs.WCRecv {
			done, err = c.received(wc)
		}
		if done && err == nil {
			return time.Since(begin), nil
		}
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: nothing for %v", ErrSilent, silence)
	}
	return 0, err
}

func (c *Client) read(size int, flags verbs.Flags) error {
	return c.QP.PostSend(&verbs.SendWR{
		Op: verbs.OpRead, Flags: verbs.Signaled | flags, RemoteSTag: c.offer.STag,
		SGL: []verbs.SGE{{MR: c.res.region, Len: uint32(min(size, int(c.offer.Length)))}},
	})
}
