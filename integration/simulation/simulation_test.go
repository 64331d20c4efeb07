package simulation

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestMain has the runs use one processor: with several it is chance which of two goroutines
// goes first, and a seed repeats nothing. What a run has is garbage after it: collected at
// the usual pace it costs a quarter of the time. But a sync.Pool keeps what it is part of from
// the collection that follows its use, and with it all of a run over SCTP, so that one in eight
// would never be enough.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(memoryLimit)
	os.Exit(m.Run())
}

// memoryLimit is from how many bytes on garbage is collected more often.
const memoryLimit = 200 << 20

// patience is how long the clients may take when nothing is in their way any more.
const patience = 3 * time.Minute

// settled is how long the server takes to close what nobody has open any more: to notice
// that a client is gone, and to wait for it.
const settled = 30 * time.Second

// simulate is one run. With sctp some of its paths are SCTP's, and else it is the same.
func simulate(t *testing.T, seed uint64, sctp, verbose bool) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		w = newWorld(seed, sctp, verbose)
		w.run()
	})
	w.judge() // the search for an order has a limit in real time
	slices.Sort(w.faults)
	return w
}

func (w *world) run() {
	w.startServer()
	for _, c := range w.clients {
		go c.live()
	}
	w.play()
	sleep(time.Second)
	w.happens("the end begins")
	w.over.Store(true)
	close(w.end)
	w.await("detach the disk", func(c *client) chan struct{} { return c.idle })
	sleep(settled)
	w.mu.Lock()
	openers := w.server.nb.Exports()[0].Openers
	w.mu.Unlock()
	for _, o := range openers {
		w.wrong("%s has the disk open, which it has detached", o.Peer)
	}
	close(w.leave)
	w.await("end", func(c *client) chan struct{} { return c.done })
	w.audit()
	w.takeServer().stop()
	w.disposal.Wait()
	w.countPackets()
}

// await waits until all clients have done something.
func (w *world) await(what string, done func(*client) chan struct{}) {
	late := time.After(patience)
	for _, c := range w.clients {
		select {
		case <-done(c):
		case <-late:
			w.wrong("%s does not %s", c.name, what)
			c.kill()
			<-c.done
		}
	}
}

// audit reads the disk at the end, by a client of its own.
func (w *world) audit() {
	c := newClient(w, "auditor", clientPlan{delays: []time.Duration{time.Millisecond}, reader: true})
	p := c.start()
	defer p.stop()
	if !p.connect() {
		w.wrong("the server admits nobody at the end")
		return
	}
	a, d := p.open()
	if d == nil {
		w.wrong("the disk cannot be attached at the end")
		return
	}
	direct{p, d}.do(&op{by: a, kind: block.OpRead, count: sectors})
	p.detach(d)
}

// kept are seeds that have found a fault, whose own test stands in the package where the
// fault was. A change of what is drawn makes them others: look for new ones then, with
// what was mended undone.
var kept = []uint64{
	454, 595, // an export that was replaced while it was away was forgotten: rnbd.TestReplacedWhileItIsAway
	271,                    // the end of a connection without a socket was seen too late: nbd.TestNothingOfAGoneClientComesLate
	151970, 199973, 353932, // a write of a closed disk was executed after a later one's: rnbd.TestWriteOfAClosedDiskIsNotExecutedAfterALaterOne
	313840,  // a device whose OPEN was answered in vain stayed open: rnbd.TestDisksThatAreClosedStayClosed
	2221941, // a fence did not wait for writes of an export that was being replaced: rnbd.TestDiskIsNotExportedWhileItsEarlierExportWrites
	443129,  // an OPEN came after its CLOSE: rtrs.TestControlRequestIsNotCarriedOutWhenWhatMakesItVoidIsLost
}

// runs are how many there are unless somebody asks for more, and with -short.
type runs struct{ few, fewest uint64 }

// Each run costs 5 to 7 ms of processor time, and 20 with paths over SCTP.
var (
	runsTCP  = runs{10000, 1000}
	runsSCTP = runs{1000, 100}
)

// fromEnvironment returns a number, or def.
func fromEnvironment(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSeeds runs what each seed draws, and finds nothing wrong.
func TestSeeds(t *testing.T) { runSeeds(t, runsTCP, kept, false) }

// TestSeedsSCTP is TestSeeds with paths over SCTP, whose packets are lost, doubled and
// overtake one another.
func TestSeedsSCTP(t *testing.T) {
	all := runSeeds(t, runsSCTP, nil, true)
	for what, n := range all.each() {
		t.Logf("packets %s: %d", what, *n)
		if *n == 0 {
			t.Errorf("of all packets none was %s", what)
		}
	}
}

// runSeeds runs the kept seeds, and those that are asked for.
func runSeeds(t *testing.T, r runs, kept []uint64, sctp bool) (all fates) {
	if checks.Weakened {
		t.Skip("the runs are the same in both builds")
	}
	first := fromEnvironment(t, "IRONWARP_SIMULATION_FIRST", 1)
	few := r.few
	if testing.Short() {
		few = r.fewest
	}
	n := fromEnvironment(t, "IRONWARP_SIMULATION_SEEDS", few)
	seeds := slices.Clone(kept)
	for seed := first; seed < first+n; seed++ {
		seeds = append(seeds, seed)
	}
	begin := time.Now()
	failed := 0
	for _, seed := range seeds {
		w := simulate(t, seed, sctp, false)
		all.add(w.fates)
		if len(w.faults) > 0 {
			t.Errorf("seed %d (IRONWARP_SIMULATION_SEED=%d go test ./integration/simulation -run %s$ -v shows it):\n%s", seed, seed, strings.Replace(t.Name(), "Seeds", "Seed", 1), strings.Join(w.faults, "\n"))
			if failed++; failed == 10 {
				break
			}
		}
	}
	t.Logf("%d seeds, %v each", len(seeds), time.Since(begin)/time.Duration(len(seeds)))
	return all
}

// TestSeed shows the run of one seed.
func TestSeed(t *testing.T) { showSeed(t, false) }

// TestSeedSCTP shows the run of one seed with paths over SCTP.
func TestSeedSCTP(t *testing.T) { showSeed(t, true) }

func showSeed(t *testing.T, sctp bool) {
	seed := fromEnvironment(t, "IRONWARP_SIMULATION_SEED", 0)
	if seed == 0 {
		seed = 1
	}
	w := simulate(t, seed, sctp, true)
	t.Logf("the plan: %+v\n%s", w.plan, strings.Join(w.events, "\n"))
	if sctp {
		t.Logf("the packets: %+v", w.fates)
	}
	if len(w.faults) > 0 {
		t.Errorf("seed %d:\n%s", seed, strings.Join(w.faults, "\n"))
	}
}

// TestSeedRepeatsItsRun: the same events come at the same times. A run is another one where
// the machine takes the processor away from it, and some are where several things happen at
// one time. But of most seeds there are soon two runs that are the same.
func TestSeedRepeatsItsRun(t *testing.T) {
	const seeds, tries, least = 20, 10, 15
	for _, sctp := range []bool{false, true} {
		repeated := 0
		for seed := uint64(1); seed <= seeds; seed++ {
			var seen [][]string
			for range tries {
				events := simulate(t, seed, sctp, true).events
				if slices.ContainsFunc(seen, func(s []string) bool { return slices.Equal(s, events) }) {
					repeated++
					break
				}
				seen = append(seen, events)
			}
		}
		if repeated < least {
			t.Errorf("paths over SCTP %v: of %d seeds %d have repeated a run", sctp, seeds, repeated)
		}
	}
}
