// Package metrics describes a host to Prometheus.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	// scrapeTime bounds one scrape.
	scrapeTime = 5 * time.Second
	// maxClients at the same time: each has two goroutines.
	maxClients = 64
	// headerTime is for a client that connects and says nothing.
	headerTime = 10 * time.Second
)

// Source is the host that the metrics are about.
type Source interface {
	Status(context.Context) api.Status
	Resources() api.Resources
	// PeerNames are the names of the configured peers. CountedAs is the one of these that has an
	// identity, Others if none has.
	PeerNames() []string
	CountedAs(transport.Identity) string
}

// Others stands for all who are no peers of the configuration.
const Others = "(other)"

// Listen begins to listen for Prometheus. It fails with an *api.Error where another program
// has the port; main is the file that names it.
func Listen(ctx context.Context, at netip.AddrPort, main string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("cannot serve metrics at %s: another program has the port", at), Fix: fmt.Sprintf("find it with `ss -ltnp 'sport = :%d'`, or change metrics: {listen: ...} in %s", at.Port(), main)}
	}
	if err != nil {
		return nil, fmt.Errorf("serve metrics at %s: %w", at, err)
	}
	return netutil.LimitListener(l, maxClients), nil
}

// Server returns an HTTP server for the metrics of a host. Scrapes end with ctx.
func Server(ctx context.Context, of Source) *http.Server {
	reg := prometheus.NewRegistry()
	reg.MustRegister(Collector(ctx, of), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Timeout: scrapeTime, MaxRequestsInFlight: 4}))
	return &http.Server{Handler: mux, ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute}
}

// Collector turns the status of a host into metrics at each scrape.
func Collector(ctx context.Context, of Source) prometheus.Collector { return collector{ctx, of} }

type collector struct {
	ctx context.Context
	Source
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ironwarp_"+name, help, labels, nil)
}

// metricSet has the metrics of the host, its streams and its block I/O.
type metricSet struct {
	up, peerUp, carrier, fallbacks, path, pathFailures, streams, streamAge, paused, refused, ops, bytes, ioErrors, latency, attached, oldestIO, exportReady, dropped *prometheus.Desc
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
		latency:      desc("io_latency_seconds", "What block I/O without an error took: of an attachment from its posting to its end, of an export at the storage.", "role", "ulp", "disk", "operation"),
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
	ctx, cancel := context.WithTimeout(c.ctx, scrapeTime)
	defer cancel()
	st, r, set := c.Status(ctx), c.Resources(), newMetricSet()
	gauge := func(m *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m, prometheus.GaugeValue, v, labels...)
	}
	counter := func(m *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m, prometheus.CounterValue, v, labels...)
	}
	histograms := emitHistograms(ch)
	gauge(set.up, 1, st.Info.Version)
	counter(set.refused, float64(st.Refused))
	counter(set.dropped, float64(r.EventsDropped))
	for _, p := range st.Peers {
		gauge(set.peerUp, boolValue(p.State == api.PeerUp || p.State == api.PeerIdle), p.Name, p.State)
		gauge(set.carrier, 1, p.Name, p.Transport, p.Carrier.Transport)
		counter(set.fallbacks, float64(p.Carrier.Fallbacks), p.Name)
		for _, s := range p.PathStates {
			counter(set.pathFailures, float64(s.Failures), p.Name, s.Address)
			if s.Reachable != "" {
				gauge(set.path, boolValue(s.Reachable == api.PathReachable), p.Name, s.Address)
			}
		}
	}
	collectStreams(st.Streams, set, gauge)
	collectPaths(st.Sessions, gauge, counter)
	collectIPsec(st, gauge, counter)
	io := func(role, ulp, disk string, io api.IO) {
		counter(set.ops, float64(io.Reads), role, ulp, disk, "read")
		counter(set.ops, float64(io.Writes), role, ulp, disk, "write")
		counter(set.bytes, float64(io.ReadBytes), role, ulp, disk, "read")
		counter(set.bytes, float64(io.WriteBytes), role, ulp, disk, "write")
		counter(set.ioErrors, float64(io.Errors), role, ulp, disk)
	}
	for _, at := range st.Attachments {
		gauge(set.attached, boolValue(at.State == api.AttachReady), at.ULP, at.Name(), at.State)
		gauge(set.oldestIO, at.OldestIOSeconds, at.ULP, at.Name())
		io("attachment", at.ULP, at.Name(), at.IO)
		histograms(set.latency, at.Latency, "attachment", at.ULP, at.Name())
	}
	for _, e := range st.Exports {
		gauge(set.exportReady, boolValue(e.State == api.ExportReady), e.Name)
		io("export", "", e.Name, e.IO)
		histograms(set.latency, e.Latency, "export", "", e.Name)
	}
	collectTargets(st, gauge, counter, histograms)
	collectSubsystems(st, gauge, counter, histograms)
	collectPools(st.Pools, gauge)
	collectFabric(st.Fabric, gauge, counter)
	c.collectShares(st, r, gauge, counter)
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

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
