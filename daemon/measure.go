package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	defaultSilence = 30 * time.Second
	maxSilence     = 10 * time.Minute
	maxBenchRow    = time.Minute
	// slowReply is the interval between replies from which each is reported.
	slowReply = 10 * time.Millisecond
)

// probePeer opens a stream to a peer's ping service.
func (d *Daemon) probePeer(ctx context.Context, who local.Caller, name, over string, silence time.Duration, emit func(api.Event)) (*probe.Client, time.Duration, error) {
	p, err := d.findPeer(name)
	if err != nil {
		return nil, 0, err
	}
	if err := who.Gate.AwaitDial(ctx, attach.MaxTime); err != nil {
		return nil, 0, err
	}
	emit(api.Event{Progress: "connecting to " + name})
	dctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	defer context.AfterFunc(p.lifetime, cancel)()
	begin := time.Now()
	var c *probe.Client
	err = p.TryCarriers(dctx, func() error {
		tc, tried, err := d.carriers.ChooseNamed(dctx, who.Consumer, p, over)
		if err != nil {
			return err
		}
		c, err = probe.Dial(dctx, who.Pings, verbs.DialConfig{Remote: p.cfg.AddrPort(), Transport: tc, Setup: p.cfg.Setup()})
		tried(err)
		return err
	})
	var known *api.Error
	scarce := who.QuotaProblem(err)
	switch {
	case err == nil:
		return c, time.Since(begin), nil
	case p.lifetime.Err() != nil:
		return nil, 0, attach.ErrPeerChanged(name)
	case who.RightsChanged():
		return nil, 0, who.ErrRightsChanged()
	case scarce != nil:
		return nil, 0, scarce
	case errors.As(err, &known):
		return nil, 0, who.Redact(name, known)
	}
	return nil, 0, who.Redact(name, p.Unreachable(err))
}

// maxPing is how long a ULP's ping may take, so that others have their turn.
const maxPing = time.Minute

// errPingOver ends a ping that takes longer.
var errPingOver = &api.Error{Code: api.CodeTimeout, Message: fmt.Sprintf("a ULP's ping ends after %v: others have their turn", maxPing), Fix: "ask for fewer round trips, or a shorter interval"}

// pingTurn waits for the turn of a ping, which ends with the context.
func (d *Daemon) pingTurn(ctx context.Context, who local.Caller, peer string) (context.Context, func(), error) {
	if who.Privileged {
		return ctx, func() {}, nil
	}
	release, err := d.local.Pings.Take(ctx, peer, who.Consumer, who.Name)
	if err != nil {
		return ctx, release, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxPing, errPingOver)
	return ctx, func() {
		cancel()
		release()
	}, nil
}

// ping measures round trips to a peer.
func (d *Daemon) ping(ctx context.Context, who local.Caller, req api.PingRequest, emit func(api.Event)) (res api.PingResult, err error) {
	if err := who.MayUse(req.Peer); err != nil {
		return res, err
	}
	silence, err := api.Seconds(req.TimeoutSeconds, defaultSilence, maxSilence)
	if err != nil {
		return res, err
	}
	interval, err := api.Seconds(req.IntervalSeconds, 0, probe.MaxInterval)
	if err != nil {
		return res, err
	}
	p := probe.Ping{Send: req.Mode == api.PingSend, Size: cmp.Or(req.Size, 64), Count: cmp.Or(req.Count, 10), Interval: interval}
	if req.Mode != "" && req.Mode != api.PingRead && req.Mode != api.PingSend {
		return res, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown mode %q; allowed: read, send", req.Mode)}
	}
	if err := p.Check(); err != nil {
		return res, &api.Error{Code: api.CodeInvalid, Message: err.Error()}
	}
	ctx, end, err := d.pingTurn(ctx, who, req.Peer)
	if err != nil {
		return res, err
	}
	defer end()
	c, setup, err := d.probePeer(ctx, who, req.Peer, req.Transport, silence, emit)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	res = api.PingResult{
		Peer: req.Peer, Identity: string(c.QP.Peer()), Mode: api.PingRead, Size: p.Size, Setup: micros(int64(setup)),
		Stream: streamID(c.QP.ID()), Transport: carrier.KindOf(c.QP.Flow()).String(), Protection: c.QP.Protection().Kind(),
	}
	if p.Send {
		res.Mode = api.PingSend
	}
	hist := probe.NewHistogram()
	err = c.Ping(ctx, p, silence, hist, func(seq int, trip time.Duration) {
		if interval >= slowReply {
			emit(api.Event{Reply: &api.PingReply{Seq: seq, Micros: micros(int64(trip))}})
		}
	})
	res.Received = int(hist.TotalCount())
	res.Sent = p.Count
	if over := context.Cause(ctx); err != nil && over == error(errPingOver) {
		return res, over
	}
	if err != nil && (res.Received == 0 || !errors.Is(err, probe.ErrSilent)) {
		return res, err
	}
	if err != nil {
		res.Sent = res.Received + 1
	}
	res.Min, res.P50, res.P99, res.Max = micros(hist.Min()), micros(hist.ValueAtQuantile(50)), micros(hist.ValueAtQuantile(99)), micros(hist.Max())
	return res, nil
}

// bench measures the link to a peer.
func (d *Daemon) bench(ctx context.Context, who local.Caller, req api.BenchRequest, emit func(api.Event)) (res api.BenchResult, err error) {
	silence, err := api.Seconds(req.TimeoutSeconds, defaultSilence, maxSilence)
	if err != nil {
		return res, err
	}
	each, err := api.Seconds(req.Seconds, time.Second, maxBenchRow)
	if err != nil {
		return res, err
	}
	c, _, err := d.probePeer(ctx, who, req.Peer, req.Transport, silence, emit)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	res = api.BenchResult{Peer: req.Peer, Transport: carrier.KindOf(c.QP.Flow()).String(), Protection: c.QP.Protection().Kind(), Rows: []api.BenchRow{}}
	rows := probe.Rows()
	for i := range rows {
		r := &rows[i]
		emit(api.Event{Progress: fmt.Sprintf("%d of %d: %s of %d bytes", i+1, len(rows), r.Op, r.Size)})
		if err := c.Bench(ctx, r, each, silence); err != nil {
			return res, err
		}
		row := benchRow(r)
		res.Rows = append(res.Rows, row)
		emit(api.Event{Row: &row})
	}
	return res, nil
}

func benchRow(r *probe.Row) api.BenchRow {
	s := r.Elapsed.Seconds()
	row := api.BenchRow{Op: r.Op, Size: r.Size, Depth: r.Depth, Operations: r.Operations}
	if s > 0 {
		row.OpsPerSec = float64(r.Operations) / s
		row.BytesPerSec = row.OpsPerSec * float64(r.Size)
	}
	row.P50, row.P99 = quantile(r.Latency, 50), quantile(r.Latency, 99)
	return row
}

func quantile(h *hdrhistogram.Histogram, q float64) float64 {
	if h == nil {
		return 0
	}
	return micros(h.ValueAtQuantile(q))
}

func micros(ns int64) float64 { return float64(ns) / 1e3 }
