package web

import (
	"github.com/ironwarp/ironwarp/daemon/api"
)

// sample is the rates of something at one look.
type sample struct {
	known                 bool // false: the daemon did not answer
	ReadBytes, WriteBytes float64
	reads, writes         float64
}

func (s *sample) add(io api.IO) {
	s.known = true
	s.ReadBytes += io.ReadBytesSec
	s.WriteBytes += io.WriteBytesSec
	s.reads += io.ReadsPerSec
	s.writes += io.WritesPerSec
}

// series has the samples of one thing at the last looks, the oldest first.
type series []sample

func (s *series) append(x sample) {
	if len(*s) == maxSamples {
		copy(*s, (*s)[1:])
		*s = (*s)[:maxSamples-1]
	}
	*s = append(*s, x)
}

// Series of a history that are sums.
const (
	ofDisks  = "disks"  // attached
	ofServed = "served" // exports and LUNs
)

// history has a series for each disk, export and LUN, and for sums.
type history map[string]*series

// look adds the rates of one look. What is gone loses its series. st is nil if the daemon did not answer.
func (h history) look(st *api.Status) {
	if st == nil {
		for _, s := range h {
			s.append(sample{})
		}
		return
	}
	now := map[string]sample{ofDisks: {known: true}, ofServed: {known: true}}
	add := func(sum, key string, io api.IO) {
		total := now[sum]
		total.add(io)
		now[sum] = total
		if len(now) < maxSeries {
			var one sample
			one.add(io)
			now[key] = one
		}
	}
	for _, a := range st.Attachments {
		add(ofDisks, diskKey(a), a.IO)
	}
	for _, e := range st.Exports {
		add(ofServed, exportKey(e.Name), e.IO)
	}
	for _, t := range st.Targets {
		for _, u := range t.Units {
			add(ofServed, lunKey(t.Name, u.Number), u.IO)
		}
	}
	for key := range h {
		if _, there := now[key]; !there {
			delete(h, key)
		}
	}
	for key, x := range now {
		if h[key] == nil {
			h[key] = new(series)
		}
		h[key].append(x)
	}
}

// last is the newest sample.
func (s *series) last() sample {
	if s == nil || len(*s) == 0 {
		return sample{}
	}
	return (*s)[len(*s)-1]
}
