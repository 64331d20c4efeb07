package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// The TCP rivals: what a Go programmer would write with care on a net.Conn.

const (
	tcpSink     = 'w' // reads until EOF, then answers one byte
	tcpEcho     = 'p' // answers every size bytes with size bytes
	tcpResponse = 'r' // answers every request with size bytes
	tcpMutual   = 'm' // writes as well, size bytes at a time

	readSize    = 256 << 10
	requestSize = 16
)

func serveTCP(ctx context.Context, listen string) (string, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serveTCPConn(c)
		}
	}()
	return ln.Addr().String(), nil
}

func serveTCPConn(c net.Conn) {
	defer c.Close()
	var head [5]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return
	}
	size := int(binary.BigEndian.Uint32(head[1:]))
	switch head[0] {
	case tcpSink:
		buf := make([]byte, readSize)
		for {
			if _, err := c.Read(buf); err != nil {
				c.Write(buf[:1])
				return
			}
		}
	case tcpMutual:
		serveTCPMutual(c, size)
	case tcpEcho:
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	case tcpResponse:
		// All requests that one read brought are answered with one write.
		in := bufio.NewReaderSize(c, 64<<10)
		reply := make([]byte, 64*size)
		for {
			if _, err := in.Peek(requestSize); err != nil {
				return
			}
			n := min(in.Buffered()/requestSize, 64)
			in.Discard(n * requestSize)
			if _, err := c.Write(reply[:n*size]); err != nil {
				return
			}
		}
	}
}

func dialTCP(ctx context.Context, addr string, mode byte, size int) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint32([]byte{mode}, uint32(size))
	if _, err := c.Write(head); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// tcpStreams writes on n connections for a while, in pieces of size bytes, and
// counts until the readers have had the last of them. prepare is done to each
// connection first.
func tcpStreams(p *peer, n, size int, prepare ...func(net.Conn) error) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		conns := make([]net.Conn, n)
		for i := range conns {
			c, err := dialTCP(ctx, p.addr, tcpSink, size)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			for _, f := range prepare {
				if err := f(c); err != nil {
					return nil, err
				}
			}
			conns[i] = c
		}
		return measureStream(p, func(until time.Time) (float64, error) {
			return atOnce(conns, func(c net.Conn) (float64, error) { return tcpWrites(c, size, until) })
		})
	}
}

// tcpWrites writes until then and waits for the reader.
func tcpWrites(c net.Conn, size int, until time.Time) (bytes float64, err error) {
	buf := make([]byte, size)
	for time.Now().Before(until) {
		if _, err := c.Write(buf); err != nil {
			return 0, err
		}
		bytes += float64(size)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(c, buf[:1])
	return bytes, err
}

// atOnce runs transfer on all streams at the same time and adds the bytes up.
func atOnce[S any](streams []S, transfer func(S) (bytes float64, err error)) (float64, error) {
	type outcome struct {
		bytes float64
		err   error
	}
	out := make(chan outcome)
	for _, s := range streams {
		go func() {
			b, err := transfer(s)
			out <- outcome{b, err}
		}()
	}
	var sum float64
	var errs []error
	for range streams {
		o := <-out
		sum += o.bytes
		errs = append(errs, o.err)
	}
	return sum, errors.Join(errs...)
}

// measureStream turns a transfer into bytes per second and CPU seconds (both
// processes) per GB.
func measureStream(p *peer, transfer func(until time.Time) (bytes float64, err error)) (metrics, error) {
	cpu0, err := p.cpu()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	bytes, err := transfer(start.Add(p.time))
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	cpu1, err := p.cpu()
	if err != nil {
		return nil, err
	}
	return metrics{
		"rate": bytes / took.Seconds(),
		"cpu":  (cpu1 - cpu0).Seconds() / (bytes / 1e9),
	}, nil
}

// tcpPingPong measures round trips of size bytes.
func tcpPingPong(p *peer, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialTCP(ctx, p.addr, tcpEcho, size)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		buf := make([]byte, size)
		return measureRoundTrips(p.time, func() error {
			if _, err := c.Write(buf); err != nil {
				return err
			}
			_, err := io.ReadFull(c, buf)
			return err
		})
	}
}

func measureRoundTrips(d time.Duration, once func() error) (metrics, error) {
	var took []time.Duration
	for end := time.Now().Add(d); ; {
		start := time.Now()
		if start.After(end) {
			break
		}
		if err := once(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return percentiles(took)
}

// percentiles are the median and the 99th percentile of round trips, in
// seconds.
func percentiles(took []time.Duration) (metrics, error) {
	if len(took) == 0 {
		return nil, errors.New("no round trip came to its end")
	}
	slices.Sort(took)
	return metrics{"p50": took[len(took)/2].Seconds(), "p99": took[len(took)*99/100].Seconds()}, nil
}

// tcpRequests keeps depth requests outstanding, each answered with size bytes.
// Whatever answers one read brings are followed by as many requests in one
// write.
func tcpRequests(p *peer, size, depth int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialTCP(ctx, p.addr, tcpResponse, size)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		requests := make([]byte, depth*requestSize)
		buf := make([]byte, depth*size)
		start := time.Now()
		end := start.Add(p.time)
		if _, err := c.Write(requests); err != nil {
			return nil, err
		}
		done, have, outstanding := 0, 0, depth
		for outstanding > 0 {
			n, err := c.Read(buf)
			if err != nil {
				return nil, err
			}
			have += n
			k := have / size
			have -= k * size
			done += k
			outstanding -= k
			if k > 0 && time.Now().Before(end) {
				if _, err := c.Write(requests[:k*requestSize]); err != nil {
					return nil, err
				}
				outstanding += k
			}
		}
		return metrics{"ops": float64(done) / time.Since(start).Seconds()}, nil
	}
}
