package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	pion "github.com/pion/sctp"
)

// figures are what one run has measured: bytes in seconds, CPU seconds of this
// process, operations, and the median of the round trips in seconds.
type figures struct {
	Bytes, Seconds, CPU, Ops, Median float64
}

// measure plays the client's part for d.
func measure(mode, addr string, size, depth int, d time.Duration) (f figures, err error) {
	play := map[string]func(*dialogue, int, time.Duration) (figures, error){
		"write":   write,
		"ping":    ping,
		"request": func(s *dialogue, size int, d time.Duration) (figures, error) { return request(s, size, depth, d) },
	}[mode]
	if play == nil {
		return f, fmt.Errorf("no mode %q: write, ping and request are possible", mode)
	}
	if size < 1 || depth < 1 {
		return f, fmt.Errorf("size %d, depth %d: at least 1 is expected", size, depth)
	}
	c, err := net.Dial("udp", addr)
	if err != nil {
		return f, err
	}
	grow(c.(*net.UDPConn))
	a, err := pion.ClientWithOptions(config(c))
	if err != nil {
		return f, fmt.Errorf("set up an association with %s: %w", addr, err)
	}
	defer a.Close()
	s, err := open(a, mode, size)
	if err != nil {
		return f, err
	}
	used, start := cpu(), time.Now()
	if f, err = play(s, size, d); err != nil {
		return f, err
	}
	f.Seconds = time.Since(start).Seconds()
	f.CPU = (cpu() - used).Seconds()
	return f, nil
}

// write sends messages and then says how many bytes they had; the server
// answers when it has them.
func write(s *dialogue, size int, d time.Duration) (f figures, err error) {
	p := make([]byte, size)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := s.send(p); err != nil {
			return f, err
		}
		f.Bytes += float64(size)
		f.Ops++
	}
	if err := s.tell(uint64(f.Bytes)); err != nil {
		return f, err
	}
	_, err = s.hear()
	return f, err
}

func ping(s *dialogue, size int, d time.Duration) (f figures, err error) {
	p, in := make([]byte, size), make([]byte, size)
	var took []float64
	for end := time.Now().Add(d); time.Now().Before(end); {
		start := time.Now()
		if err := s.send(p); err != nil {
			return f, err
		}
		if _, err := s.data.Read(in); err != nil {
			return f, err
		}
		took = append(took, time.Since(start).Seconds())
	}
	if len(took) == 0 {
		return f, errors.New("no message came back")
	}
	slices.Sort(took)
	f.Median, f.Ops = took[len(took)/2], float64(len(took))
	return f, nil
}

// requestSize is the size in bytes of a request.
const requestSize = 16

func request(s *dialogue, size, depth int, d time.Duration) (f figures, err error) {
	p, in := make([]byte, requestSize), make([]byte, size)
	for range depth {
		if err := s.send(p); err != nil {
			return f, err
		}
	}
	end := time.Now().Add(d)
	for outstanding := depth; outstanding > 0; {
		if _, err := s.data.Read(in); err != nil {
			return f, err
		}
		f.Ops++
		if time.Now().After(end) {
			outstanding--
		} else if err := s.send(p); err != nil {
			return f, err
		}
	}
	return f, nil
}
