package ikematrix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/rping"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// payloadSize is what each echo carries in either direction.
const payloadSize = 64 << 10

// payload is the canary repeated and numbered, so that blocks and seeds differ.
func payload(canary lab.Canary, seed uint64) []byte {
	b := make([]byte, 0, payloadSize)
	for i := uint64(0); len(b) < payloadSize; i++ {
		b = append(b, canary.Bytes(16)...)
		b = binary.BigEndian.AppendUint64(b, seed)
		b = binary.BigEndian.AppendUint64(b, i)
	}
	return b
}

// echo sends a payload over the connection and compares what comes back.
func echo(c *transport.Conn, canary lab.Canary, seed uint64) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sent := payload(canary, seed)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c, got)
	if err = errors.Join(<-wrote, err); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	if !bytes.Equal(sent, got) {
		return errors.New("echo: what came back is not what was sent")
	}
	return nil
}

// echoServer answers echoes on a host, on connections that its Manager admits.
type echoServer struct {
	ln      *transport.Listener
	wg      sync.WaitGroup
	mu      sync.Mutex // guards the fields below it
	conns   []*transport.Conn
	closed  bool
	refused []error
}

func (h *host) serveEcho(ctx context.Context, at netip.AddrPort) (*echoServer, error) {
	s := &echoServer{}
	err := h.Do(func() (err error) {
		s.ln, err = transport.Listen(ctx, at, &transport.Config{Protector: h.m, OnRefused: s.refuse})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.wg.Go(func() {
		for {
			c, err := s.ln.Accept(context.Background())
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.closed {
				c.Close()
			}
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Go(func() {
				_, _ = io.Copy(c, c)
				c.Close()
			})
		}
	})
	return s, nil
}

func (s *echoServer) refuse(_ transport.Flow, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, err)
}

func (s *echoServer) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.refused...)
}

// close ends the connections that their clients have not ended.
func (s *echoServer) close() {
	s.ln.Close()
	s.mu.Lock()
	s.closed = true
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (h *host) dial(ctx context.Context, from netip.Addr, to netip.AddrPort) (c *transport.Conn, err error) {
	err = h.Do(func() (err error) {
		c, err = transport.Dial(ctx, to, &transport.Config{Protector: h.m, Local: from})
		return err
	})
	return c, err
}

// stream runs pings of rping between the hosts: each is an RDMA Read, an RDMA Write,
// and Sends, on a stream of package verbs. SCTP in UDP uses SCTP's port number for UDP
// as well.
func stream(ctx context.Context, client, server *host, from netip.Addr, to netip.AddrPort, kind transport.Kind) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const pings = 3
	a, ulpA, err := device()
	if err != nil {
		return err
	}
	defer a.Close()
	b, ulpB, err := device()
	if err != nil {
		return err
	}
	defer b.Close()
	var ln *verbs.Listener
	err = server.Do(func() (err error) {
		ln, err = b.Listen(ctx, to, verbs.ListenConfig{Transport: &transport.Config{Kind: kind, UDPPort: to.Port(), Protector: server.m}})
		return err
	})
	if err != nil {
		return err
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			_, err = rping.Serve(ctx, ulpB, req, rping.Config{})
		}
		served <- err
	}()
	err = client.Do(func() error {
		n, err := rping.Client(ctx, ulpA, verbs.DialConfig{Remote: to, Transport: &transport.Config{Kind: kind, UDPPort: to.Port(), Protector: client.m, Local: from}},
			rping.Config{Size: rping.MaxSize, Count: pings, Validate: true})
		if err == nil && n != pings {
			err = fmt.Errorf("%d of %d pings came back", n, pings)
		}
		return err
	})
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-served); err != nil {
		return fmt.Errorf("RDMA Reads and Writes: %w", err)
	}
	return nil
}

func device() (*verbs.Device, *verbs.ULP, error) {
	d, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, nil, err
	}
	u, err := d.NewULP("rping", verbs.ULPConfig{})
	if err != nil {
		d.Close()
		return nil, nil, err
	}
	return d, u, nil
}
