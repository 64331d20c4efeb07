package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// scrapeTime bounds one scrape.
const scrapeTime = 5 * time.Second

// openMetrics listens for Prometheus if the configuration says so.
func (d *Daemon) openMetrics(ctx context.Context) error {
	at := d.cfg.Metrics.Listen
	if !at.IsValid() {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("cannot serve metrics at %s: another program has the port", at), Fix: fmt.Sprintf("find it with `ss -ltnp 'sport = :%d'`, or change metrics: {listen: ...} in %s", at.Port(), d.cfg.Path)}
	}
	if err != nil {
		return fmt.Errorf("serve metrics at %s: %w", at, err)
	}
	if !at.Addr().IsLoopback() {
		d.log.Warn("metrics are served without protection beyond this host", "address", at)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Timeout: scrapeTime, MaxRequestsInFlight: 4}))
	d.metrics = &http.Server{Handler: mux, ReadHeaderTimeout: controlHeaderTime, IdleTimeout: time.Minute}
	d.run(func(context.Context) {
		if err := d.metrics.Serve(netutil.LimitListener(l, maxControlClients)); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the metrics listener has failed", "error", err)
		}
	})
	return nil
}

// collector turns the status into metrics at each scrape.
type collector struct{ d *Daemon }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ironwarp_"+name, help, labels, nil)
}

// metrics that the daemon has.
type metricSet struct {
	up, peerUp, carrier, fallbacks, path, pathFailures, streams, streamAge, paused, refused, ops, bytes, ioErrors, attached, oldestIO, exportReady, dropped *prometheus.Desc
}

func newMetricSet() metricSet {
	return metricSet{
		up:           desc("info", "The daemon's version; always 1.", "version"),
		peerUp:       desc("peer_usable", "1 if streams to the peer can run or be brought up.", "peer", "state"),
		carrier:      desc("peer_transport", "What carries the streams that this host opens to the peer; always 1. Empty: nothing yet.", "peer", "configured", "transport"),
		fallbacks:    desc("transport_fallbacks_total", "Times that a transport did not work and the next best was taken.", "peer"),
		path:         desc("path_reachable", "1 if SCTP gets answers by the path, 0 if not.", "peer", "address"),
		pathFailures: desc("path_failures_total", "Times that SCTP got no more answers by the path.", "peer", "address"),
		streams:      desc("streams", "RDMA streams.", "peer", "service", "transport"),
		streamAge:    desc("stream_oldest_seconds", "Age of the oldest stream.", "peer"),
		paused:       desc("streams_paused", "RDMA streams that wait for an SA.", "peer"),
		refused:      desc("refused_connections_total", "Connections that were turned away."),
		ops:          desc("io_operations_total", "Block I/O operations.", "role", "ulp", "disk", "direction"),
		bytes:        desc("io_bytes_total", "Block I/O bytes.", "role", "ulp", "disk", "direction"),
		ioErrors:     desc("io_errors_total", "Block I/O operations that failed.", "role", "ulp", "disk"),
		attached:     desc("attachment_ready", "1 if the attached disk can do I/O now.", "ulp", "disk", "state"),
		oldestIO:     desc("attachment_oldest_io_seconds", "How long the oldest I/O under way on the attached disk has been waiting.", "ulp", "disk"),
		exportReady:  desc("export_ready", "1 if the export is offered.", "disk"),
		dropped:      desc("rnic_events_dropped_total", "RNIC events that found their queue full."),
	}
}

// Describe implements prometheus.Collector: the set of metrics is not fixed.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.d.ctx, scrapeTime)
	defer cancel()
	st, set := c.d.Status(ctx), newMetricSet()
	gauge := func(m *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m, prometheus.GaugeValue, v, labels...)
	}
	counter := func(m *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m, prometheus.CounterValue, v, labels...)
	}
	gauge(set.up, 1, st.Info.Version)
	counter(set.refused, float64(st.Refused))
	counter(set.dropped, float64(c.d.dev.EventsDropped()))
	for _, p := range st.Peers {
		gauge(set.peerUp, truth(p.State == api.PeerUp || p.State == api.PeerIdle), p.Name, p.State)
		gauge(set.carrier, 1, p.Name, p.Transport, p.Carrier.Transport)
		counter(set.fallbacks, float64(p.Carrier.Fallbacks), p.Name)
		for _, s := range p.PathStates {
			counter(set.pathFailures, float64(s.Failures), p.Name, s.Address)
			if s.Reachable != "" {
				gauge(set.path, truth(s.Reachable == api.PathReachable), p.Name, s.Address)
			}
		}
	}
	collectStreams(st.Streams, set, gauge)
	collectIPsec(st, gauge, counter)
	io := func(role, ulp, disk string, io api.IO) {
		counter(set.ops, float64(io.Reads), role, ulp, disk, "read")
		counter(set.ops, float64(io.Writes), role, ulp, disk, "write")
		counter(set.bytes, float64(io.ReadBytes), role, ulp, disk, "read")
		counter(set.bytes, float64(io.WriteBytes), role, ulp, disk, "write")
		counter(set.ioErrors, float64(io.Errors), role, ulp, disk)
	}
	for _, at := range st.Attachments {
		gauge(set.attached, truth(at.State == api.AttachReady), at.ULP, at.Name(), at.State)
		gauge(set.oldestIO, at.OldestIOSeconds, at.ULP, at.Name())
		io("attachment", at.ULP, at.Name(), at.IO)
	}
	for _, e := range st.Exports {
		gauge(set.exportReady, truth(e.State == api.ExportReady), e.Name)
		io("export", "", e.Name, e.IO)
	}
	c.d.collectShares(st, gauge, counter)
}

func collectStreams(streams []api.Stream, set metricSet, gauge emitter) {
	n, oldest, paused := map[[3]string]int{}, map[string]float64{}, map[string]int{}
	for _, s := range streams {
		n[[3]string{s.Peer, s.Service, s.Transport}]++
		oldest[s.Peer] = max(oldest[s.Peer], s.AgeSeconds)
		if s.Paused {
			paused[s.Peer]++
		}
	}
	for k, v := range n {
		gauge(set.streams, float64(v), k[0], k[1], k[2])
	}
	for k, v := range oldest {
		gauge(set.streamAge, v, k)
		gauge(set.paused, float64(paused[k]), k)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
