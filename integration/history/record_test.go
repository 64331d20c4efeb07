package history

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ironwarp/ironwarp/integration/history/register"
)

// outcome is the result of an operation as its client got it.
type outcome uint8

const (
	pending outcome = iota
	succeeded
	failed
	unknown // its connection ended first
)

// opKind is what a client asks for.
type opKind string

const (
	opRead  opKind = "read"
	opWrite opKind = "write"
	opFlush opKind = "flush"
)

// op is one operation of a client.
type op struct {
	kind   opKind
	disk   uint8
	block  uint32
	blocks uint32
	write  uint32 // its number
	fua    bool
	conn   *session

	call, ret int64
	out       outcome
	errno     syscall.Errno
	seen      [][]uint32 // by a read: of each sector the numbers of the writes
	done      chan struct{}
}

// ended reports whether its outcome is known.
func (o *op) ended() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

func (o *op) String() string {
	what := fmt.Sprintf("%s of block %d", o.kind, o.block)
	switch {
	case o.kind == opWrite && o.fua:
		what = fmt.Sprintf("write %d with FUA to block %d", o.write, o.block)
	case o.kind == opWrite:
		what = fmt.Sprintf("write %d to block %d", o.write, o.block)
	case o.kind == opFlush:
		what = "flush"
	}
	return fmt.Sprintf("%s of disk %d by connection %d", what, o.disk, o.conn.number)
}

// covers reports whether the operation is about a sector.
func (o *op) covers(s uint32) bool {
	b := s / (blockSize / sector)
	return o.kind == opFlush || b >= o.block && b < o.block+o.blocks
}

// session is one connection of an NBD client.
type session struct {
	number     int
	disk       uint8
	epoch      int // of the attachment
	start, end int64
}

// event is something that happened to a disk.
type event struct {
	disk      uint8
	call, ret int64
	set       []uint32 // the values of its sectors from then on; nil: a power cut
}

// excuse is a time in which operations may fail, and why.
type excuse struct {
	disk     uint8
	from, to int64
	kinds    []opKind // none: all
	why      string
	used     int
}

// recorder records the history of a scene.
type recorder struct {
	begin time.Time

	mu       sync.Mutex
	ops      []*op
	sessions []*session
	events   []event
	losses   []int64 // of the path, and of the daemons at its ends
	excuses  []*excuse
	faults   map[string]int // injected, by kind
	wrong    []string       // found without a search
	writes   uint32
	epochs   map[uint8]int
}

func newRecorder() *recorder {
	return &recorder{begin: time.Now(), faults: map[string]int{}, epochs: map[uint8]int{}}
}

// now is the current time of the history, never 0.
func (r *recorder) now() int64 { return int64(time.Since(r.begin)) + 1 }

func (r *recorder) invoke(o *op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.kind == opWrite {
		r.writes++
		o.write = r.writes
	}
	o.call, o.done = r.now(), make(chan struct{})
	r.ops = append(r.ops, o)
}

// complete notes the end of an operation; data is what a read has returned.
func (r *recorder) complete(o *op, out outcome, errno syscall.Errno, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ret, o.out, o.errno = r.now(), out, errno
	if o.kind == opRead && out == succeeded {
		r.lookLocked(o, data)
	}
	close(o.done)
}

func (r *recorder) lookLocked(o *op, data []byte) {
	for i := range o.blocks {
		seen, err := readTags(data[i*blockSize:(i+1)*blockSize], o.disk, o.block+i)
		if err != nil {
			r.wrong = append(r.wrong, fmt.Sprintf("%v: %v", o, err))
			o.out = unknown // it does not fit into a history of this disk
			return
		}
		o.seen = append(o.seen, seen...)
	}
}

func (r *recorder) open(disk uint8) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &session{number: len(r.sessions) + 1, disk: disk, epoch: max(r.epochs[disk], 1), start: r.now(), end: register.Never}
	r.sessions = append(r.sessions, s)
	return s
}

// end notes that a connection is over.
func (r *recorder) end(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.end = min(s.end, r.now())
}

// attached starts an epoch: clients that connect from now on know that what was not
// flushed before may be lost.
func (r *recorder) attached(disk uint8) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epochs[disk] = max(r.epochs[disk], 1) + 1
}

// fault counts what is done to the product.
func (r *recorder) fault(what string, lossOfPath bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[what]++
	if lossOfPath {
		r.losses = append(r.losses, r.now())
	}
}

func (r *recorder) happened(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// excuse lets operations fail until end is called.
func (r *recorder) excuse(disk uint8, why string, kinds ...opKind) (end func()) {
	x := &excuse{disk: disk, from: r.now(), to: register.Never, why: why, kinds: kinds}
	r.mu.Lock()
	r.excuses = append(r.excuses, x)
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		x.to = r.now()
	}
}

// history is what happened to one sector. resent reports whether writes that were
// acknowledged may have been carried out before, too, on a path that was lost.
func (r *recorder) history(disk uint8, s uint32, resent bool) (all []porcupine.Operation) {
	lastCut := int64(0)
	for _, e := range r.events {
		if e.disk != disk {
			continue
		}
		x := register.Step{Kind: register.Cut}
		if e.set != nil {
			x = register.Step{Kind: register.Set, Value: e.set[s]}
		} else {
			lastCut = max(lastCut, e.ret)
		}
		all = append(all, porcupine.Operation{Input: x, Call: e.call, Return: e.ret})
	}
	ops := slices.DeleteFunc(slices.Clone(r.ops), func(o *op) bool { return o.disk != disk || !o.covers(s) })
	read := map[uint32]bool{}
	for _, o := range ops {
		if o.kind == opRead && o.out == succeeded {
			for _, v := range o.seen[s-o.block*(blockSize/sector)] {
				read[v] = true
			}
		}
	}
	for _, o := range ops {
		// A write that no power cut follows may as well be durable at once.
		x := register.Step{Value: o.write, FUA: o.fua, Durable: o.fua || o.call > lastCut, Epoch: o.conn.epoch, Start: o.conn.start}
		add := func(to int64) {
			all = append(all, porcupine.Operation{ClientId: o.conn.number, Input: x, Call: o.call, Return: to})
		}
		// A write whose outcome is unknown, and that no read has seen, counts as not carried
		// out.
		maybe := func(times int, to int64) {
			for _, l := range r.losses {
				if l > o.call && l < to && times < maxTimes {
					times++
				}
			}
			x.Kind, x.Durable, x.Died = register.Maybe, o.call > lastCut, o.conn.end
			for i := 0; i < times && read[o.write]; i++ {
				add(to)
			}
		}
		switch {
		case o.kind == opWrite && o.out == succeeded:
			x.Kind = register.Write
			add(o.ret)
			if resent {
				maybe(0, o.ret)
			}
		case o.kind == opWrite && o.out == failed:
			maybe(1, o.ret)
		case o.kind == opWrite:
			maybe(1, r.fence(o.conn))
		case o.kind == opFlush && o.out == succeeded:
			x.Kind = register.Flush
			add(o.ret)
		case o.kind == opRead && o.out == succeeded:
			x.Kind = register.Read
			for _, x.Value = range o.seen[s-o.block*(blockSize/sector)] {
				add(o.ret)
			}
		}
	}
	return all
}

// maxTimes bounds how often one write is taken to have been carried out.
const maxTimes = 3

// fence is when a later connection has been served: from then on no request of the
// ended one may be carried out.
func (r *recorder) fence(c *session) int64 {
	at := int64(register.Never)
	for _, o := range r.ops {
		if o.disk == c.disk && o.conn.start > c.end && o.out == succeeded {
			at = min(at, o.ret)
		}
	}
	return at
}

// excused returns why an operation was allowed to fail.
func (r *recorder) excused(o *op) bool {
	ok := false
	for _, x := range r.excuses {
		if x.disk == o.disk && x.from <= o.ret && o.call <= x.to && (len(x.kinds) == 0 || slices.Contains(x.kinds, o.kind)) {
			x.used++
			ok = true
		}
	}
	return ok || r.atRisk(o)
}

// atRisk reports whether a power cut may have taken a write that was acknowledged, and
// not flushed, in the attachment that o is of.
func (r *recorder) atRisk(o *op) bool {
	for _, e := range r.events {
		if e.disk != o.disk || e.set != nil || e.call > o.ret {
			continue
		}
		for _, w := range r.ops {
			if w.kind != opWrite || w.out != succeeded || w.fua || w.disk != o.disk || w.conn.epoch != o.conn.epoch || w.ret > e.ret {
				continue
			}
			if !slices.ContainsFunc(r.ops, func(f *op) bool {
				return f.kind == opFlush && f.out == succeeded && f.disk == o.disk && f.call > w.ret && f.ret < e.call
			}) {
				return true
			}
		}
	}
	return false
}

// lost counts the acknowledged writes that a later read has shown to be gone: it
// returned an older one, with a power cut in between.
func (r *recorder) lost() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.set != nil {
			continue
		}
		last := map[uint32]*op{} // by block
		for _, o := range r.ops {
			if o.disk == e.disk && o.kind == opWrite && o.out == succeeded && o.ret < e.call && (last[o.block] == nil || last[o.block].ret < o.call) {
				last[o.block] = o
			}
		}
		for _, w := range last {
			if slices.ContainsFunc(r.ops, func(o *op) bool {
				return o.kind == opRead && o.out == succeeded && o.disk == e.disk && o.block == w.block && o.call > e.ret && o.seen[0][0] < w.write
			}) {
				n++
			}
		}
	}
	return n
}

// judge searches the history and returns what is wrong with it, with pictures if show.
func (r *recorder) judge(t testing.TB, show bool) []string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	wrong := slices.Clone(r.wrong)
	for _, o := range r.ops {
		if o.out == failed && !r.excused(o) {
			wrong = append(wrong, fmt.Sprintf("%v failed (%v), and there is no cause", o, o.errno))
		}
	}
	type place struct {
		disk   uint8
		sector uint32
	}
	places := map[place]bool{}
	for _, o := range r.ops {
		for s := range o.blocks * (blockSize / sector) {
			places[place{o.disk, o.block*(blockSize/sector) + s}] = true
		}
	}
	todo := slices.SortedFunc(maps.Keys(places), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.disk, b.disk), cmp.Compare(a.sector, b.sector))
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	checked := map[string]bool{}
	work := make(chan place, len(todo))
	for _, p := range todo {
		work <- p
	}
	close(work)
	pictures := 0
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for p := range work {
				h := r.history(p.disk, p.sector, false)
				k := fmt.Sprint(p.disk, h)
				mu.Lock()
				seen := checked[k]
				checked[k] = true
				mu.Unlock()
				if seen {
					continue // all sectors of a block have seen the same, mostly
				}
				result := porcupine.CheckOperationsTimeout(register.Model, h, searchTime)
				if result == porcupine.Illegal {
					h = r.history(p.disk, p.sector, true)
					result = porcupine.CheckOperationsTimeout(register.Model, h, searchTime)
				}
				var text string
				switch result {
				case porcupine.Ok:
					continue
				case porcupine.Illegal:
					text = fmt.Sprintf("sector %d of disk %d: no order of its %d operations explains what clients have seen", p.sector, p.disk, len(h))
				default:
					text = fmt.Sprintf("sector %d of disk %d: the search through %d operations took longer than %v", p.sector, p.disk, len(h), searchTime)
				}
				mu.Lock()
				wrong = append(wrong, text)
				pictures++
				show := show && pictures <= maxPictures
				mu.Unlock()
				if show {
					_, info := porcupine.CheckOperationsVerbose(register.Model, h, searchTime)
					t.Logf("sector %d of disk %d: %s", p.sector, p.disk, explain(h, info))
					picture(t, fmt.Sprintf("disk%d-sector%d.html", p.disk, p.sector), info)
				}
			}
		})
	}
	wg.Wait()
	return wrong
}

// maxPictures is how many sectors of a scene are shown.
const maxPictures = 2

// explain reports where the longest order of a history's operations ends.
func explain(h []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, l := range info.PartialLinearizations()[0] {
		if len(l) > len(longest) {
			longest = l
		}
	}
	line := func(i int) string {
		o := h[i]
		end := "never"
		if o.Return != register.Never {
			end = fmt.Sprintf("%.6f", time.Duration(o.Return).Seconds())
		}
		return fmt.Sprintf("\n  %.6f to %s s, connection %d: %v", time.Duration(o.Call).Seconds(), end, o.ClientId, o.Input)
	}
	text := fmt.Sprintf("an order that explains %d of %d operations ends with", len(longest), len(h))
	for _, i := range longest[max(0, len(longest)-8):] {
		text += line(i)
	}
	var left []int
	for i := range h {
		if !slices.Contains(longest, i) {
			left = append(left, i)
		}
	}
	slices.SortFunc(left, func(a, b int) int { return cmp.Compare(h[a].Return, h[b].Return) })
	text += "\nand does not go on with"
	for _, i := range left[:min(len(left), 8)] {
		text += line(i)
	}
	return text
}

// picture saves porcupine's view of a history in which there is no order.
func picture(t testing.TB, name string, info porcupine.LinearizationInfo) {
	dir := filepath.Join(os.TempDir(), "ironwarp-history", strings.ReplaceAll(t.Name(), "/", "_"))
	path := filepath.Join(dir, name)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = porcupine.VisualizePath(register.Model, info, path)
	}
	if err != nil {
		t.Logf("no picture of the history: %v", err)
		return
	}
	t.Logf("a picture of the history, for a browser: %s", path)
}

// counts are the numbers of a history's operations and events.
type counts struct {
	acknowledged, reads, flushes, unanswered, failed int
	overlapping                                      int // with another on the same block
}

func (r *recorder) counts() (c counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byCall := slices.Clone(r.ops)
	slices.SortFunc(byCall, func(a, b *op) int { return cmp.Compare(a.call, b.call) })
	type place struct {
		disk  uint8
		block uint32
	}
	until := map[place]int64{}
	for _, o := range byCall {
		switch {
		case o.out == unknown:
			c.unanswered++
		case o.out == failed:
			c.failed++
		case o.kind == opWrite:
			c.acknowledged++
		case o.kind == opRead:
			c.reads++
		case o.kind == opFlush:
			c.flushes++
		}
		if o.kind == opFlush {
			continue
		}
		end := o.ret
		if o.out == unknown {
			end = o.conn.end
		}
		for i := range o.blocks {
			p := place{o.disk, o.block + i}
			if o.call < until[p] {
				c.overlapping++
			}
			until[p] = max(until[p], end)
		}
	}
	return c
}

func (c *counts) add(o counts) {
	c.acknowledged += o.acknowledged
	c.reads += o.reads
	c.flushes += o.flushes
	c.unanswered += o.unanswered
	c.failed += o.failed
	c.overlapping += o.overlapping
}

func (c counts) String() string {
	return fmt.Sprintf("%d writes acknowledged, %d reads, %d flushes, %d unanswered, %d failed; %d overlapped another on their block",
		c.acknowledged, c.reads, c.flushes, c.unanswered, c.failed, c.overlapping)
}

// searchTime bounds the search for an order of the operations on one sector.
const searchTime = 60 * time.Second
