package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/blocklist"
	"github.com/ironwarp/ironwarp/daemon/capture"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/daemon/export"
	"github.com/ironwarp/ironwarp/daemon/handover"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/manage"
	"github.com/ironwarp/ironwarp/daemon/metrics"
	"github.com/ironwarp/ironwarp/daemon/names"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/daemon/programs"
	"github.com/ironwarp/ironwarp/daemon/repeats"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/daemon/subsystems"
	"github.com/ironwarp/ironwarp/daemon/targets"
	"github.com/ironwarp/ironwarp/daemon/volumes"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Options say how a daemon starts.
type Options struct {
	Config  string // main configuration file
	Named   bool   // it was named explicitly, so it has to exist
	Version string
	// Log makes the logger, once the configuration has said how. Nil: no log.
	Log func(config.Log) *slog.Logger

	retry   time.Duration // 0: retryEvery
	trial   time.Duration // carrier.Config.Trial
	avoid   time.Duration // carrier.Config.Avoid
	stuck   time.Duration // 0: stuckTime
	offer   time.Duration // 0: export.OfferTime
	closing time.Duration // export.Config.Closing
	drain   time.Duration // attach.Config.Drain
	kernel  func() error  // carrier.Config.Kernel
	// removeGuard takes a guard down, or says why it stays; nil: guard.Remove.
	removeGuard func(guard.Spec) error
	// devices sets block devices up; nil: device.Kernel.
	devices *device.Driver
	// rate is carrier.Config.Rate.
	rate func(context.Context, *local.Consumer, carrier.Peer, transport.Kind) (float64, error)
	// lookup is names.Config.Lookup.
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// passed is what systemd has passed; nil: what it has.
	passed []*os.File
}

// Daemon is a running IronWarp host.
type Daemon struct {
	opt     Options
	log     *slog.Logger
	repeats *repeats.Handler // its handler
	started time.Time
	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	locks      []*lock
	passed     []*os.File // by systemd, among them the control socket
	http       *http.Server
	metrics    *http.Server
	dev        *verbs.Device
	ulps       map[string]*verbs.ULP // by the name of the service, each with its quota
	exports    *export.Exporter
	sessions   *rtrs.Server
	probes     *probe.Server
	sas        *sas.Control
	refused    refusals
	blocks     *blocklist.List
	events     eventCounts
	local      *local.Consumers
	disks      *attach.Attacher
	carriers   *carrier.Chooser
	peers      *peers
	names      *names.Finder
	listeners  *listen.Listeners
	targets    *targets.Targets
	subsystems *subsystems.Subsystems
	programs   *programs.Programs
	directory  *directory.Directory
	volumes    *volumes.Volumes
	managed    *manage.Server // of peers that manage volumes
	captures   *capture.Captures
	fabric     fabric

	partitions partition.Published // what is in force
	labels     labels              // for whoever has changing

	controlPath string // of the control socket
	cfg         atomic.Pointer[config.Config]

	changing changeLock // held while the configuration changes
	guards   recordedGuards

	mu       sync.Mutex // guards the fields below it
	closed   bool
	wasReady bool // it was ready once
}

// Start reads the configuration and brings the daemon up. What only concerns a
// peer, an export or a listener is no error: it shows in the status and is tried
// again. Close ends the daemon.
func Start(ctx context.Context, opt Options) (*Daemon, error) {
	cfg, err := config.Load(opt.Config, opt.Named)
	if err != nil {
		return nil, err
	}
	if opt.removeGuard == nil {
		opt.removeGuard = guard.Remove
	}
	opt.retry, opt.stuck, opt.offer = cmp.Or(opt.retry, retryEvery), cmp.Or(opt.stuck, stuckTime), cmp.Or(opt.offer, export.OfferTime)
	d := &Daemon{opt: opt, started: time.Now(), log: slog.New(slog.DiscardHandler), ulps: map[string]*verbs.ULP{}, refused: refusals{rejecting: make(chan struct{}, maxRejecting)}, peers: newPeers()}
	d.cfg.Store(cfg)
	if opt.Log != nil {
		d.log = opt.Log(cfg.Log)
	}
	d.repeats = repeats.New(d.log.Handler())
	d.log = slog.New(d.repeats)
	d.blocks = blocklist.New(blocklist.Config{Log: d.log, Policy: cfg.Block, Kernel: d.kernelBlocker, Peers: d.blocklistPeers, Begun: d.onBlocked})
	d.partitions.Permitted = d.onPermitted
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.local = local.NewConsumers(d.config)
	if opt.passed == nil {
		opt.passed = activation.Files(true)
	}
	kept, passed := splitPassed(opt.passed)
	d.passed = passed
	d.disks = attach.New(attach.Config{Clients: handover.Load(d.log, os.Getenv("NOTIFY_SOCKET"), kept), Log: d.log, Users: d.local, Context: d.ctx, Run: d.run, Config: d.config, Devices: cmp.Or(opt.devices, device.Kernel()), Drain: opt.drain,
		Peer: func(name string) (attach.Peer, error) { return d.findPeer(name) },
		Choose: func(ctx context.Context, by *local.Consumer, p attach.Peer, path, partition string) (*transport.Config, func(error), error) {
			to, err := p.(*peer).carrierPeer(path)
			if err != nil {
				return nil, nil, err
			}
			t, tried, err := d.carriers.Choose(ctx, by, to)
			if err == nil && partition != "" {
				t, err = to.Carrier().InPartition(t, to.Declared(), partition)
			}
			return t, tried, err
		},
		MayUse: d.partitions.MayUse,
		Health: func(p attach.Peer) (string, *api.Error) {
			v := d.describePeer(p.(*peer), streamCount{})
			return v.State, v.Problem
		}})
	d.names = d.newNames()
	d.carriers = carrier.New(carrier.Config{Log: d.log, Run: d.run, Root: d.local.Root, Peers: d.peers.carrierPeers, Streams: d.sessionStreams, Refused: d.refusesStreams,
		At:    func(a netip.Addr) (carrier.Peer, bool) { p := d.peers.byAddress(a); return p, p != nil },
		Trial: opt.trial, Avoid: opt.avoid, Kernel: opt.kernel, Rate: opt.rate})
	d.listeners = listen.New(listen.Config{Log: d.log, Kernel: d.carriers.KernelSCTP, Open: d.listenAt, Accept: d.accept})
	d.sas = sas.New(sas.Config{Log: d.log, Peer: func(name string) (sas.Peer, error) { return d.findPeer(name) }, Owner: d.peers.ownerName})
	d.guards = recordedGuards{log: d.log, file: guardsFile(cfg.StateDir), remove: opt.removeGuard, held: map[guardRecord]string{}}
	if err := d.bringUp(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) bringUp(ctx context.Context) error {
	if err := d.takeLocks(); err != nil {
		return err
	}
	d.removeLeftovers()
	cfg := d.config()
	saved, err := attach.Load(cfg.StateDir)
	if err != nil {
		return err
	}
	control, err := d.openControl(ctx)
	if err != nil {
		return err
	}
	if err := d.openRNIC(); err != nil {
		control.Close()
		return err
	}
	d.controlPath = control.Addr().String()
	if err := d.serveMetrics(ctx); err != nil {
		control.Close()
		return err
	}
	d.changing.Lock()
	all := *cfg
	d.withVolumes(&all)
	cfg = &all
	d.cfg.Store(cfg)
	d.guards.load()
	d.applyConfig(ctx, config.Default(cfg.Path), cfg)
	d.disks.RestoreSaved(saved)
	d.changing.Unlock()
	d.exports.AwaitStorage()
	// Whoever has made systemd start the daemon hears of the disks that are saved.
	d.http = d.newControlServer()
	d.run(func(context.Context) { d.serveControl(control) })
	d.run(d.supervise)
	d.run(d.carriers.Reconsider)
	d.run(d.watchEvents)
	d.run(d.watchPaths)
	d.run(d.names.Run)
	d.run(d.followServices)
	d.run(d.blocks.Watch)
	d.run(d.meterIO)
	d.run(d.volumes.Watch)
	d.run(d.watchdog)
	d.mu.Lock()
	d.wasReady = true
	d.mu.Unlock()
	d.disks.AwaitDevices(ctx)
	d.log.Info("ironwarp daemon is ready", "version", d.opt.Version, "config", cfg.Path, "socket", cfg.ControlSocket, "peers", len(cfg.Peers), "exports", len(cfg.Exports))
	d.notify(sd.SdNotifyReady)
	return nil
}

// removeLeftovers removes what processes that were killed have left.
func (d *Daemon) removeLeftovers() {
	cfg := d.config()
	if err := errors.Join(cfg.RemoveTemporary(), wholefile.RemoveTemporary(cfg.StateDir), wholefile.RemoveTemporary(export.RecordsDir(cfg.StateDir))); err != nil {
		d.log.Warn("cannot remove what a process that was killed has left", "error", err)
	}
}

// run starts a goroutine that Close waits for.
func (d *Daemon) run(f func(context.Context)) {
	d.wg.Go(func() {
		f(d.ctx)
	})
}

func (d *Daemon) takeLocks() error {
	cfg := d.config()
	for _, dir := range []string{cfg.StateDir, cfg.RuntimeDir, cfg.NBDDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("cannot make the directory %s: %v", dir, err),
				Fix: "run the daemon as root, or name directories of your own with state_dir and runtime_dir in the configuration"}
		}
	}
	for i, dir := range []string{cfg.StateDir, cfg.RuntimeDir} {
		what := [...]string{"state directory", "runtime directory"}[i]
		if same, err := sameDir(dir, cfg.StateDir); err != nil || same && i > 0 {
			return err
		}
		l, err := takeLock(filepath.Join(dir, "lock"), what)
		if err != nil {
			return err
		}
		d.locks = append(d.locks, l)
	}
	return nil
}

// openControl takes the control socket from systemd or makes it.
func (d *Daemon) openControl(ctx context.Context) (net.Listener, error) {
	l, err := controlSocket(d.passed)
	if err != nil {
		return nil, fmt.Errorf("take the control socket from systemd: %w", err)
	}
	if l != nil {
		return l, nil
	}
	return local.Listen(ctx, d.config().ControlSocket)
}

// Close shuts the daemon down: streams end, disks are detached from their
// sockets but stay attached for the next start, and the kernel's guard stays.
func (d *Daemon) Close() error {
	d.mu.Lock()
	first, up := !d.closed, d.wasReady
	d.closed = true
	d.mu.Unlock()
	if !first {
		return nil
	}
	if d.exports != nil {
		d.exports.SetFlushDeadline(time.Now().Add(export.FlushTime))
	}
	d.notify(sd.SdNotifyStopping)
	// A socket of systemd's stays, and who may connect to it may start the daemon.
	d.setSocketAccess(false)
	if d.programs != nil {
		d.programs.Close()
	}
	d.cancel()
	var err error
	for _, s := range []*http.Server{d.http, d.metrics} {
		if s != nil {
			err = errors.Join(err, closeHTTP(s))
		}
	}
	if d.managed != nil {
		d.volumes.Close()
		err = errors.Join(err, d.managed.Close())
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	d.listeners.Close()
	if d.targets != nil {
		d.targets.Close()
		d.subsystems.Close()
	}
	d.closeLabels(d.labels)
	d.labels = labels{}
	d.disks.Close(up)
	if d.sessions != nil {
		err = errors.Join(err, d.sessions.Close())
	}
	if d.probes != nil {
		err = errors.Join(err, d.probes.Close())
	}
	if d.exports != nil {
		d.exports.Close()
	}
	if d.targets != nil {
		d.targets.Wait(closeTimeout)
		d.subsystems.Wait(closeTimeout)
	}
	d.wg.Wait()
	if d.dev != nil {
		err = errors.Join(err, d.dev.Close())
	}
	err = errors.Join(err, d.sas.Close())
	if names := d.guardedPeers(); len(names) > 0 {
		d.log.Info("the kernel's guard stays in place: streams to these peers cannot leave in clear while the daemon is away", "peers", names)
	}
	for _, l := range d.locks {
		l.release()
	}
	if up {
		d.log.Info("ironwarp daemon has ended")
	}
	return err
}

// closeTimeout bounds calls of the control API that are under way at the end.
const closeTimeout = 2 * time.Second

func closeHTTP(s *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		return s.Close()
	}
	return nil
}

// retryEvery is how often what is broken is tried again.
const retryEvery = 3 * time.Second

// supervise tries again what did not work: peers that could not be set up,
// addresses that could not be listened on, exports that could not be opened.
func (d *Daemon) supervise(ctx context.Context) {
	for range rate.Ticks(ctx, d.opt.retry) {
		d.repeats.Report(d.log)
		d.warnNarrowPaths()
		// Close waits for this goroutine with changing held.
		if !d.changing.TryLock() {
			continue
		}
		if ctx.Err() == nil {
			d.retryBroken(ctx)
		}
		d.disks.Retry()
		d.changing.Unlock()
	}
}

// meterEvery is how often counters are sampled for rates.
const meterEvery = time.Second

// meterIO samples the counters of all block I/O.
func (d *Daemon) meterIO(ctx context.Context) {
	for now := range rate.Ticks(ctx, meterEvery) {
		d.exports.Meter(now)
		d.disks.Meter(now)
	}
}

// retryBroken tries everything that is broken once. changing is held.
func (d *Daemon) retryBroken(ctx context.Context) {
	d.setUpPeers(ctx, slices.DeleteFunc(d.peers.list(), func(p *peer) bool { return !p.needsSetUp() }), true)
	d.guards.removeUnneeded(d.peers.list())
	cfg := d.config()
	d.listeners.Listen(ctx, cfg, d.awaitedPeers(cfg))
	d.listenForTargets(ctx, cfg)
	d.exports.Retry()
}

// serveMetrics listens for Prometheus if the configuration says so.
func (d *Daemon) serveMetrics(ctx context.Context) error {
	cfg := d.config()
	at := cfg.Metrics.Listen
	if !at.IsValid() {
		return nil
	}
	l, err := metrics.Listen(ctx, at, cfg.Path)
	if err != nil {
		return err
	}
	if !at.Addr().IsLoopback() {
		d.log.Warn("metrics are served without protection beyond this host", "address", at)
	}
	d.metrics = metrics.Server(d.ctx, d)
	d.run(func(context.Context) {
		if err := d.metrics.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the metrics listener has failed", "error", err)
		}
	})
	return nil
}

// PeerNames are the peers of the configuration.
func (d *Daemon) PeerNames() []string { return d.config().PeerNames() }

// info says who this daemon is.
func (d *Daemon) info() api.Info {
	cfg := d.config()
	return api.Info{
		Version: d.opt.Version, PID: os.Getpid(), Config: cfg.Path, ControlSocket: cfg.ControlSocket,
		StateDir: cfg.StateDir, Started: d.started,
	}
}

func (d *Daemon) config() *config.Config { return d.cfg.Load() }
