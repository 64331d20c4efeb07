package main

import (
	"context"
	"fmt"
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
	size := j.size()
	typ := uint32(vhosttest.In)
	if j.writes() {
		typ = vhosttest.Out
	}
	next := j.places()
	// Each has memory of its own, where its successor is, too.
	q, all := f.Queues[0], make([]vhosttest.Request, j.depth)
	data, first := make([]byte, size), q.Mark()
	post := func(i int) {
		q.Rewind(first + int64(i)*int64(size+4096))
		all[i] = vhosttest.Request{Typ: typ, Sector: next() / 512, Data: data}
		q.Post(&all[i])
	}
	return j.timed(pids, func(more func() bool) (done int, err error) {
		for i := range all {
			post(i)
		}
		for under := len(all); under > 0; {
			if err := q.Announce(); err != nil {
				return 0, err
			}
			if err := q.Next(time.Now().Add(vhostPatience)); err != nil {
				return 0, fmt.Errorf("no request over the vhost-user socket ends: %w", err)
			}
			goOn := more()
			for i := range all {
				r := &all[i]
				if !r.Done {
					continue
				}
				if r.Status != vhosttest.OK {
					return 0, fmt.Errorf("request %d to sector %d over the vhost-user socket: status %d", r.Typ, r.Sector, r.Status)
				}
				done++
				if r.Done = false; goOn {
					post(i)
				} else {
					under--
				}
			}
		}
		return done, nil
	})
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
