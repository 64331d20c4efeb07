package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
)

// Sessions of two paths, one by each of the wires between two hosts. Their peers are not
// protected, so that no ESP in user space is what they wait for.

const (
	onePathPort   = 7472 // of the daemons whose session has one path
	shapedRate    = "100mbit"
	lostHeartbeat = 200 * time.Millisecond
	lostMisses    = 2
	lossAfter     = 500 * time.Millisecond // of load
)

// plain has the peers of diskHosts.attach unprotected.
func plain(_, _ *lab.Host) string { return ", insecure_plaintext: true" }

// byTwoPaths gives them a second path, by the second wire.
func byTwoPaths(local, remote *lab.Host) string {
	return plain(local, remote) + fmt.Sprintf(", paths: [{address: %s, local_address: %s}]", remote.AddrOn(1), local.AddrOn(1))
}

// shapedRows are what two narrow paths carry beside one.
func shapedRows() (rows []row) {
	for _, r := range fioRows() {
		if job, ok := strings.CutSuffix(r.name, " / nbdkit"); ok && strings.Contains(job, "1 MiB") {
			job = strings.TrimPrefix(job, "fio ")
			r.name, r.aim = "fio "+job+", two paths of 100 Mbit/s / one", 1.9
			r.ours.contender, r.rival = "two shaped paths/"+job, []ref{{"one shaped path/" + job, r.ours.metric}}
			rows = append(rows, r)
		}
	}
	return rows
}

// shape has both hosts send no more than shapedRate by each wire.
func (h *diskHosts) shape(ctx context.Context) error {
	for _, host := range h.Hosts() {
		for wire := range 2 {
			if _, err := host.Run(ctx, "tc", "qdisc", "replace", "dev", host.DevOn(wire), "root", "tbf", "rate", shapedRate, "burst", "32kb", "latency", "50ms"); err != nil {
				return leftOut(fmt.Sprintf("a path cannot be made narrow here: %v", err))
			}
		}
	}
	return nil
}

func (h *diskHosts) shapedDisks() map[string]startServer {
	return map[string]startServer{
		"two shaped paths": func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
			if err := h.shape(ctx); err != nil {
				return nil, err
			}
			s, err := h.attach(ctx, b, dir, image, espPort, 2, byTwoPaths)
			if err == nil {
				err = s.awaitSecond(ctx, "the second path", isUp)
			}
			return s, err
		},
		"one shaped path": func(ctx context.Context, b *bench, dir, _ string) (*blockServer, error) {
			image := filepath.Join(dir, "one.img") // a daemon locks what it exports
			if err := errors.Join(h.shape(ctx), makeImage(image)); err != nil {
				return nil, err
			}
			return h.attach(ctx, b, dir, image, onePathPort, 1, plain)
		},
	}
}

const pathUp = "connected" // a path's state

func isUp(p api.SessionPath) bool { return p.State == pathUp }

// awaitSecond waits until the session's second path is as it should.
func (s *blockServer) awaitSecond(ctx context.Context, what string, as func(p api.SessionPath) bool) error {
	c := api.NewClient(s.client.socket())
	defer c.Close()
	return waitFor(ctx, what, 30*time.Second, func() error {
		all, err := c.Sessions(ctx)
		if err != nil {
			return err
		}
		if len(all) != 1 || len(all[0].Paths) != 2 || !as(all[0].Paths[1]) {
			return fmt.Errorf("the sessions are %+v", all)
		}
		return nil
	})
}

// lostPathRows are the longest that an operation takes while one of two paths is lost, beside
// what it cannot do without: until the daemon knows, and once more to the peer and back.
func lostPathRows() (rows []row) {
	for _, j := range fioJobs {
		for _, how := range []string{"is reset", "goes silent"} {
			if j.depth == 32 {
				contender := "a path " + how + "/" + j.name
				rows = append(rows, row{name: fmt.Sprintf("longest stall, %s, when one of two paths %s", j.name, how), unit: "ms", scale: 1e3, less: true,
					ours: ref{contender, "longest"}, rival: []ref{{contender, "least"}}, note: "beside the time until the daemon knows, plus the median latency"})
			}
		}
	}
	return rows
}

func (h *diskHosts) losingDisks() map[string]startServer {
	start := shared(func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
		return h.attach(ctx, b, dir, image, espPort, 2, func(local, remote *lab.Host) string {
			return byTwoPaths(local, remote) + fmt.Sprintf(", heartbeat_interval: %v, heartbeat_misses: %d", lostHeartbeat, lostMisses)
		})
	})
	losing := func(lose, mend func(ctx context.Context) error) startServer {
		return func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
			disk, err := start(ctx, b, dir, image)
			if err != nil {
				return nil, err
			}
			s := *disk
			s.seconds = 2 * fioSeconds
			s.lose = func(ctx context.Context) (time.Duration, error) { return s.losePath(ctx, lose, mend) }
			return &s, s.awaitSecond(ctx, "the second path", isUp)
		}
	}
	return map[string]startServer{
		"a path is reset": losing(func(ctx context.Context) error {
			_, err := h.server.Run(ctx, "ss", "-tK", "src", h.server.AddrOn(1).String())
			return err
		}, func(context.Context) error { return nil }),
		"a path goes silent": losing(func(ctx context.Context) error { return h.server.Sever(ctx, 1, true) },
			func(ctx context.Context) error { return h.server.Sever(ctx, 1, false) }),
	}
}

// losePath loses the session's second path under load, mends it, and returns after how long a
// silence the daemon gave it up.
func (s *blockServer) losePath(ctx context.Context, lose, mend func(ctx context.Context) error) (known time.Duration, err error) {
	var before, after api.SessionPath
	loaded := func() error {
		return s.awaitSecond(ctx, "load on the second path", func(p api.SessionPath) bool { before = p; return p.InFlight > 0 })
	}
	if err := loaded(); err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(lossAfter):
	}
	if err := loaded(); err != nil {
		return 0, err
	}
	if err := lose(ctx); err != nil {
		return 0, err
	}
	err = s.awaitSecond(ctx, "the loss of the second path", func(p api.SessionPath) bool {
		after = p
		return p.State != pathUp || p.Reconnects > before.Reconnects
	})
	if after.Problem != nil {
		known = silence(after.Problem.Message)
	}
	return known, errors.Join(err, mend(ctx), s.awaitSecond(ctx, "the second path", isUp))
}

var silent = regexp.MustCompile(`silent for ([0-9a-z.]+)`)

// silence is how long a silence a problem of a path speaks of, 0 for none.
func silence(problem string) time.Duration {
	if m := silent.FindStringSubmatch(problem); m != nil {
		d, _ := time.ParseDuration(m[1]) // 0 if it is none
		return d
	}
	return 0
}
