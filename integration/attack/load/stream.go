package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Stream is a stream that behaves: it reads from a disk that the daemon exports.
type Stream struct {
	dev    *verbs.Device // nil: it is of others
	client *rnbd.Client
	disk   *rnbd.Disk
	next   uint64
}

// Dial connects to the daemon's disk of the name export. It fails with the first error
// of verbs, rtrs or rnbd.
func Dial(ctx context.Context, t Target, from netip.Addr, carrier transport.Kind, export string) (_ *Stream, err error) {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	ulp, err := dev.NewULP("stream", verbs.ULPConfig{Trust: verbs.SLT})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	s, err := Join(ctx, ulp, t, from, carrier, Session{Name: "stream of " + from.String(), Export: export, Conns: 1, QueueDepth: 32})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	s.dev = dev
	return s, nil
}

// Session is one of a daemon's disks, and how a client has it.
type Session struct {
	Name, Export      string
	Conns, QueueDepth int
}

// Join is Dial with an ULP that others may use at the same time. It fails as Dial does.
func Join(ctx context.Context, ulp *verbs.ULP, t Target, from netip.Addr, carrier transport.Kind, as Session) (_ *Stream, err error) {
	s := &Stream{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	tc := &transport.Config{Protector: transport.LoopbackOnly(), Local: from, Kind: carrier, UDPPort: t.UDP, MTU: 1500}
	s.client, err = rnbd.Connect(ctx, rnbd.ClientConfig{RTRS: rtrs.ClientConfig{
		ULP: ulp, Name: as.Name, Paths: []rtrs.PathConfig{{Remote: t.Addr, Transport: tc}}, Conns: as.Conns, QueueDepth: as.QueueDepth,
		Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU},
	}})
	if err != nil {
		return nil, err
	}
	s.disk, err = s.client.Open(ctx, as.Export, rnbd.OpenOptions{ReadOnly: true})
	return s, err
}

// Close ends the stream.
func (s *Stream) Close() error {
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	if s.dev != nil {
		err = errors.Join(err, s.dev.Close())
	}
	return err
}

// Reconnects is how often the stream was lost.
func (s *Stream) Reconnects() uint64 { return s.client.Info().Reconnects }

// done gets the result of a Read.
type done chan syscall.Errno

func (d done) Complete(errno syscall.Errno) { d <- errno }

// Read reads n bytes from the next place of the disk. It fails with ctx's error, or the
// I/O's.
func (s *Stream) Read(ctx context.Context, n uint32) error {
	x, end, err := s.submit(ctx, n)
	if err != nil {
		return err
	}
	return wait(ctx, x, end)
}

func (s *Stream) submit(ctx context.Context, n uint32) (block.IO, done, error) {
	off := s.next % (s.disk.Geometry().Size - uint64(n) + 1) &^ 4095
	s.next += uint64(n)
	x, err := s.disk.Get(ctx, block.OpRead, off, n, 0)
	if err != nil {
		return nil, nil, err
	}
	end := make(done, 1)
	x.Submit(end, false)
	return x, end, nil
}

func wait(ctx context.Context, x block.IO, end done) error {
	select {
	case errno := <-end:
		x.Release()
		if errno != 0 {
			return fmt.Errorf("read: %w", errno)
		}
		return nil
	case <-ctx.Done():
		// The I/O is still the stream's; its end takes it back.
		go func() {
			<-end
			x.Release()
		}()
		return ctx.Err()
	}
}

// Bandwidth reads 64 KiB at a time, eight at once, for a while, and returns bytes per
// second. It fails as Read does.
func (s *Stream) Bandwidth(ctx context.Context, d time.Duration) (float64, error) {
	const size, deep = 64 << 10, 8
	type read struct {
		io  block.IO
		end done
	}
	var under [deep]read
	var bytes float64
	start := time.Now()
	var err error
	for i := 0; time.Since(start) < d; i = (i + 1) % deep {
		if r := under[i]; r.io != nil {
			if err = wait(ctx, r.io, r.end); err != nil {
				return 0, err
			}
			bytes += size
		}
		if under[i].io, under[i].end, err = s.submit(ctx, size); err != nil {
			return 0, err
		}
	}
	rate := bytes / time.Since(start).Seconds()
	for _, r := range under {
		if r.io != nil {
			err = errors.Join(err, wait(ctx, r.io, r.end))
		}
	}
	return rate, err
}

// Latency reads 4 KiB at a time, one after the other, for a while. It fails as Read
// does.
func (s *Stream) Latency(ctx context.Context, d time.Duration) (median, p99 time.Duration, err error) {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for start := time.Now(); time.Since(start) < d; {
		begin := time.Now()
		if err := s.Read(ctx, 4096); err != nil {
			return 0, 0, err
		}
		_ = h.RecordValue(int64(time.Since(begin))) // above a minute they count as one
	}
	return time.Duration(h.ValueAtPercentile(50)), time.Duration(h.ValueAtPercentile(99)), nil
}
