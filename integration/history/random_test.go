package history

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// Variables of TestRandom.
const (
	seedVar = "IRONWARP_HISTORY_SEED" // of the run to repeat
	timeVar = "IRONWARP_HISTORY_TIME" // for how long to start new runs, as in 10m
)

const (
	randomTime    = 20 * time.Second
	runFaults     = 6 // in one run
	randomClients = 4
	randomBlocks  = 6
	randomDepth   = 4 // operations that a client has under way
	opsBetween    = 120
)

// TestRandom lets clients work while faults happen in an order chosen by a seed.
func TestRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("random histories take their time")
	}
	if checks.Weakened {
		t.Skip("each fault that a check keeps away has a scene of its own")
	}
	if v := os.Getenv(seedVar); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(v, func(t *testing.T) { randomRun(t, seed) })
		return
	}
	limit := randomTime
	if v := os.Getenv(timeVar); v != "" {
		var err error
		if limit, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	var all counts
	faults := map[string]int{}
	for begin := time.Now(); time.Since(begin) < limit && !t.Failed(); {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := randomRun(t, seed)
			all.add(r.rec.counts())
			for f, n := range r.rec.faults {
				faults[f] += n
			}
		})
	}
	t.Logf("%v; faults: %v", all, faults)
	if all.overlapping < 50 || all.acknowledged < 200 || all.reads < 200 || all.flushes < 10 || all.unanswered == 0 || len(faults) < 3 {
		t.Error("too little has happened to prove anything")
	}
}

// TestUndisturbed: without faults nothing fails.
func TestUndisturbed(t *testing.T) {
	if checks.Weakened {
		t.Skip("each fault that a check keeps away has a scene of its own")
	}
	r := newRandom(t, rand.Uint64())
	r.progress(5 * opsBetween)
	until(t, "operations meet", func() bool { return r.rec.counts().overlapping >= 50 })
	if c := r.finish(); c.failed+c.unanswered > 0 {
		t.Errorf("%v", c)
	}
}

// random is a run of TestRandom.
type random struct {
	*scene
	rng  *rand.Rand
	p    *powered // nil where there is no storage
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu   sync.Mutex
	live map[int]*client // by worker
}

// newRandom starts the clients of a run.
func newRandom(t *testing.T, seed uint64) *random {
	t.Helper()
	r := &random{rng: rand.New(rand.NewPCG(seed, 0)), stop: make(chan struct{}), live: map[int]*client{}}
	if noStorage() == "" {
		r.p = newPowered(t, checks.None)
		r.scene = r.p.scene
		r.newDisk("other", filepath.Join(r.p.m.dir, "other.img"))
		command(t, "sync", r.disks[1].path)
		r.beta.reload()
	} else {
		r.scene = newScene(t, checks.None, func(s *scene) {
			s.newDisk("disk", filepath.Join(s.dir, "disk.img"))
			s.newDisk("other", filepath.Join(s.dir, "other.img"))
		})
	}
	for _, d := range r.disks {
		r.attach(d)
	}
	for i := range randomClients {
		rng := rand.New(rand.NewPCG(seed, uint64(i)+1))
		r.wg.Go(func() { r.work(i, r.disks[i%len(r.disks)], rng) })
	}
	t.Cleanup(r.end)
	return r
}

// end ends the clients.
func (r *random) end() {
	r.once.Do(func() { close(r.stop) })
	r.wg.Wait()
}

// finish ends the run and judges it.
func (r *random) finish() counts {
	r.Helper()
	r.end()
	for _, d := range r.disks {
		c := r.dial(d)
		r.must(c.start(opFlush, 0, 0, false))
		r.must(c.readAll(randomBlocks)...)
		c.kill()
	}
	r.beta.stop()
	for _, d := range r.disks {
		r.audit(d, d.path)
	}
	for _, w := range r.rec.judge(r, true) {
		r.Error(w)
	}
	c := r.rec.counts()
	r.Logf("%v; faults: %v", c, r.rec.faults)
	return c
}

func randomRun(t *testing.T, seed uint64) *random {
	t.Logf("%s=%d go test ./integration/history -run TestRandom draws these faults again", seedVar, seed)
	r := newRandom(t, seed)
	all := r.faults()
	for _, i := range r.rng.Perm(len(all))[:runFaults] {
		r.progress(opsBetween)
		t.Logf("%.1fs: %s", time.Since(r.rec.begin).Seconds(), all[i].name)
		all[i].do()
	}
	r.progress(opsBetween)
	r.finish()
	return r
}

// work is a client that sends request after request, and that a new one replaces when
// it is killed.
func (r *random) work(number int, d *disk, rng *rand.Rand) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	var c *client
	var under []*op
	for {
		select {
		case <-r.stop:
			for _, o := range under {
				<-o.done
			}
			if c != nil {
				c.kill()
			}
			return
		case <-tick.C:
		}
		if c == nil || !c.alive() {
			var err error
			if c, err = r.tryDial(d); err != nil {
				c = nil
				continue
			}
			r.mu.Lock()
			r.live[number] = c
			r.mu.Unlock()
			under = nil
		}
		under = slices.DeleteFunc(under, func(o *op) bool {
			select {
			case <-o.done:
				return true
			default:
				return false
			}
		})
		if len(under) >= randomDepth {
			continue
		}
		b := rng.Uint32N(randomBlocks)
		switch n := rng.IntN(20); {
		case n == 0:
			under = append(under, c.start(opFlush, 0, 0, false))
		case n < 10:
			under = append(under, c.start(opRead, b, 1, false))
		default:
			under = append(under, c.start(opWrite, b, 1+rng.Uint32N(min(2, randomBlocks-b)), n == 19))
		}
	}
}

// progress waits until n requests of clients have succeeded.
func (r *random) progress(n int) {
	r.Helper()
	first := r.ended(succeeded)
	until(r.T, "clients are served", func() bool { return r.ended(succeeded) >= first+n })
}

// ended is how many operations have ended in one of these ways.
func (r *random) ended(how ...outcome) (n int) {
	r.rec.mu.Lock()
	defer r.rec.mu.Unlock()
	for _, o := range r.rec.ops {
		if slices.Contains(how, o.out) {
			n++
		}
	}
	return n
}

// killSome kills clients while they work.
func (r *random) killSome() {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range randomClients {
		if c := r.live[i]; c != nil && (r.rng.IntN(2) == 0 || n == 0) {
			r.killClient(c)
			n++
		}
	}
}

type randomFault struct {
	name string
	do   func()
}

func (r *random) faults() []randomFault {
	all := []randomFault{
		{"clients are killed", r.killSome},
		{"the path is cut", func() {
			r.rec.fault("path cut", true)
			r.wire.cut()
		}},
		{"the path is away, and clients are killed", func() {
			r.cutPath(r.killSome)
		}},
		{"the path is away, and disks are attached anew", func() {
			r.cutPath(nil)
			r.reattach()
		}},
		{"disks are attached anew", r.reattach},
		{"the attaching daemon is killed", func() { r.restartAlpha(r.alpha.kill) }},
		{"the attaching daemon is restarted", func() { r.restartAlpha(r.alpha.stop) }},
		{"the exporting daemon is killed", r.killBeta},
		{"the exporting daemon is restarted", func() {
			r.rec.fault("exporting daemon restarted", true)
			r.beta.stop()
			r.beta.start()
		}},
		{"another file is under an export for a while", r.exchange},
	}
	if r.p != nil {
		all = append(all, randomFault{"the exporting host loses power", r.cutPower})
	}
	return all
}

// killBeta kills the exporting daemon. A disk that it was flushing at that moment fails
// until it is attached again; no other does.
func (r *random) killBeta() {
	r.rec.fault("exporting daemon killed", true)
	r.beta.kill()
	var flushed []*disk
	var ends []func()
	for _, d := range r.disks {
		if backingtest.KilledInSync(r.T, d.path) {
			flushed = append(flushed, d)
			ends = append(ends, r.rec.excuse(d.number, "it was being flushed"))
		}
	}
	r.beta.start()
	r.scene.reattach(flushed...)
	for _, end := range ends {
		end()
	}
}

// cutPath takes the path away until clients wait for it.
func (r *random) cutPath(then func()) {
	r.rec.fault("path away", true)
	r.wire.setDown(true)
	until(r.T, "clients wait", func() bool { return r.inFlight() >= randomClients })
	if then != nil {
		then()
	}
	r.wire.setDown(false)
}

// reattach attaches all disks again, in a random order.
func (r *random) reattach() {
	r.rec.fault("attached anew", true)
	order := slices.Clone(r.disks)
	r.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	r.scene.reattach(order...)
}

func (r *random) restartAlpha(end func()) {
	r.rec.fault("attaching daemon restarted", true)
	var ends []func()
	for _, d := range r.disks {
		ends = append(ends, r.rec.excuse(d.number, "the attaching daemon ends"))
	}
	end()
	for i, d := range r.disks {
		ends[i]()
		r.rec.attached(d.number)
	}
	r.alpha.start()
}

// exchange puts another file under an export and the right one back. Nothing of the
// other one may be seen or touched meanwhile.
func (r *random) exchange() {
	d := r.disks[r.rng.IntN(len(r.disks))]
	const otherDisk = 77
	other := filepath.Join(r.dir, fmt.Sprintf("foreign%d.img", r.rec.now()))
	r.newFile(other, otherDisk)
	r.rec.fault("file exchanged", true)
	end := r.rec.excuse(d.number, "another file is under the export")
	r.export(d, other)
	r.beta.reload()
	until(r.T, "the disk is lost", func() bool { return r.attachment(d).State == api.AttachFailed })
	r.export(d, d.path)
	r.beta.reload()
	until(r.T, "the disk is back", func() bool { return r.attachment(d).State == api.AttachReady })
	end()
	if _, err := readTags(must(os.ReadFile(other))(r.T)[:blockSize], otherDisk, 0); err != nil {
		r.Errorf("the file of another disk: %v", err)
	}
}

// cutPower takes the power from the exporting host. A disk that may have lost something
// fails from then on, until it is attached again.
func (r *random) cutPower() {
	r.p.powerCut()
	first := r.ended(succeeded, failed)
	until(r.T, "clients are answered", func() bool { return r.ended(succeeded, failed) >= first+opsBetween/4 })
	r.reattach()
}
