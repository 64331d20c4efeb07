package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

const (
	// vhostPiece is the longest piece of memory in a request of a guest, in bytes.
	vhostPiece = 64 << 10
	// vhostPatience is how long all requests may take until one ends.
	vhostPatience = 10 * time.Second
)

// runVhost has a front end without a guest do the job on a vhost-user socket, and
// reports what run does.
func (j fioJob) runVhost(ctx context.Context, socket string, pids []int) (metrics, error) {
	f, err := vhosttest.New(vhosttest.Options{Features: vhosttest.FeatureEventIndex | vhosttest.FeatureIndirect | vhosttest.FeatureFlush, Indirect: true, Segment: vhostPiece, InPlace: true})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Connect(socket); err != nil {
		return nil, fmt.Errorf("the vhost-user socket %s: %w", socket, err)
	}
	size := map[string]int{"4k": 4 << 10, "1m": 1 << 20}[j.block]
	typ := uint32(vhosttest.In)
	if strings.Contains(j.rw, "write") {
		typ = vhosttest.Out
	}
	next := uint64(0)
	place := func() uint64 {
		at := next
		if next++; strings.HasPrefix(j.rw, "rand") {
			at = rand.Uint64()
		}
		return at % uint64(imageSize/size) * uint64(size/512)
	}
	// Each has memory of its own, where its successor is, too.
	q, all := f.Queues[0], make([]vhosttest.Request, j.depth)
	data, first := make([]byte, size), q.Mark()
	post := func(i int) {
		q.Rewind(first + int64(i)*int64(size+4096))
		all[i] = vhosttest.Request{Typ: typ, Sector: place(), Data: data}
		q.Post(&all[i])
	}
	cpu0, err := processCPU(pids)
	if err != nil {
		return nil, err
	}
	begin, done := time.Now(), 0
	for i := range all {
		post(i)
	}
	for under := len(all); under > 0; {
		if err := q.Announce(); err != nil {
			return nil, err
		}
		now := time.Now()
		if err := q.Next(now.Add(vhostPatience)); err != nil {
			return nil, fmt.Errorf("no request over the vhost-user socket ends: %w", err)
		}
		more := now.Sub(begin) < fioSeconds*time.Second
		for i := range all {
			r := &all[i]
			if !r.Done {
				continue
			}
			if r.Status != vhosttest.OK {
				return nil, fmt.Errorf("request %d to sector %d over the vhost-user socket: status %d", r.Typ, r.Sector, r.Status)
			}
			done++
			if r.Done = false; more {
				post(i)
			} else {
				under--
			}
		}
	}
	took := time.Since(begin).Seconds()
	cpu1, err := processCPU(pids)
	if err != nil {
		return nil, err
	}
	return metrics{"ops": float64(done) / took, "rate": float64(done*size) / took, "cpu": (cpu1 - cpu0).Seconds() / float64(done)}, nil
}

// vhostRows are those jobs of fio's of which many requests or much data are under way.
func vhostRows() (rows []row) {
	for _, r := range fioRows() {
		job, other := strings.CutSuffix(r.name, " / nbdkit")
		cpu := strings.HasPrefix(r.name, "CPU")
		if !other && !cpu || strings.Contains(r.name, "depth 1 ") {
			continue
		}
		r.name = strings.TrimPrefix(job, "fio ") + " over vhost-user"
		if cpu {
			r.note = "ours: both daemons; nbdkit: its server; the time of fio and of our front end is in neither"
		} else {
			r.name, r.aim = r.name+" / nbdkit", 1
		}
		r.ours.contender = strings.Replace(r.ours.contender, "ironwarp/", "vhost-user/", 1)
		rows = append(rows, r)
	}
	return rows
}
