package rping

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"

	"github.com/ironwarp/ironwarp/verbs"
)

// Config describes a run.
type Config struct {
	Size     int  // bytes of each payload, MinSize to MaxSize; 0 for DefaultSize. A server takes MaxSize
	Count    int  // pings of a client, 0: until its context ends
	Validate bool // a client compares what came back with what it sent
	// Each, if not nil, is called with the text of each ping, which is valid
	// during the call.
	Each func(text []byte)
	Log  *slog.Logger // told of each step at level debug; nil: nobody
}

func (c *Config) debug(msg string, args ...any) {
	if c.Log != nil {
		c.Log.Debug(msg, args...)
	}
}

// Client connects to a server and pings it. Private data, IRD and ORD of dial
// are set here. It returns how many pings came back.
func Client(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig, cfg Config) (done int, err error) {
	if cfg.Size == 0 {
		cfg.Size = DefaultSize
	}
	if cfg.Size < MinSize || cfg.Size > MaxSize || cfg.Count < 0 {
		return 0, fmt.Errorf("rping: %d pings of %d bytes; the size may be %d to %d", cfg.Count, cfg.Size, MinSize, MaxSize)
	}
	s, err := newSide(ulp, cfg.Size, verbs.RemoteRead, verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	if s.qp, _, err = ulp.Dial(ctx, s.pd, s.config(), dial, s.listen); err != nil {
		return 0, err
	}
	cfg.debug("connected", "flow", s.qp.Flow(), "protection", s.qp.Protection().Kind())
	for ; cfg.Count == 0 || done < cfg.Count; done++ {
		if err := s.ping(ctx, done, &cfg); err != nil {
			return done, fmt.Errorf("ping %d: %w", done, err)
		}
	}
	return done, nil
}

// ping makes the seq-th round trip.
func (s *side) ping(ctx context.Context, seq int, cfg *Config) error {
	source, sink := s.data[0], s.data[1]
	fillText(source.Bytes(), seq)
	clear(sink.Bytes())
	for _, mr := range s.data {
		if err := s.say(info{STag: mr.STag(), Size: uint32(mr.Len())}); err != nil {
			return err
		}
		cfg.debug("advertised a buffer", "stag", mr.STag(), "bytes", mr.Len())
		if _, err := s.hear(ctx); err != nil {
			return err
		}
		cfg.debug("the server went ahead")
	}
	if cfg.Validate && !bytes.Equal(source.Bytes(), sink.Bytes()) {
		return fmt.Errorf("rping: what came back differs from what was sent, first at byte %d", firstDifference(source.Bytes(), sink.Bytes()))
	}
	if cfg.Each != nil {
		cfg.Each(text(sink.Bytes()))
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// text is what precedes the 0.
func text(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
