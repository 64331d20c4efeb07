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
	// Trust is how much the peer is trusted, at most as much as the ULP permits. Each
	// run has a protection domain of its own, so nothing is shared.
	Trust verbs.TrustModel
	// Each, if not nil, is called with the text of each ping, which is valid
	// during the call.
	Each func(text []byte)
	Log  *slog.Logger // gets each step at level debug; nil: no log
}

func (c *Config) debug(msg string, args ...any) {
	if c.Log != nil {
		c.Log.Debug(msg, args...)
	}
}

// Client connects to a server and pings it. Private data, IRD and ORD of dial
// are set here. It returns how many pings came back. It fails if a ping comes back
// altered, when the stream ends early, and with ctx's error.
func Client(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig, cfg Config) (done int, err error) {
	if cfg.Size == 0 {
		cfg.Size = DefaultSize
	}
	if cfg.Size < MinSize || cfg.Size > MaxSize || cfg.Count < 0 {
		return 0, fmt.Errorf("rping: %d pings of %d bytes; the size may be %d to %d", cfg.Count, cfg.Size, MinSize, MaxSize)
	}
	s, err := newSide(ulp, cfg.Trust, 0, verbs.LocalWrite)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	dial.QP, dial.Prepare = s.config(), s.listen
	if s.qp, err = s.pd.Dial(ctx, dial); err != nil {
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

// ping makes the seq-th round trip. The server may read the text, and then write it
// back, each until it answers (RFC 5042 section 6.3.3).
func (s *side) ping(ctx context.Context, seq int, cfg *Config) error {
	source, sink := s.data[0].Bytes()[:cfg.Size], s.data[1].Bytes()[:cfg.Size]
	fillText(source, seq)
	clear(sink)
	if err := s.offer(ctx, s.data[0], verbs.RemoteRead, cfg); err != nil {
		return err
	}
	if err := s.endRead(); err != nil {
		return err
	}
	if err := s.offer(ctx, s.data[1], verbs.RemoteWrite, cfg); err != nil {
		return err
	}
	if err := s.endWrite(); err != nil {
		return err
	}
	if cfg.Validate && !bytes.Equal(source, sink) {
		return fmt.Errorf("rping: what came back differs from what was sent, first at byte %d", firstDifference(source, sink))
	}
	if cfg.Each != nil {
		cfg.Each(text(sink))
	}
	return nil
}

// offer opens the bytes of a ping in a buffer, advertises them to the server, and waits for
// its answer.
func (s *side) offer(ctx context.Context, mr *verbs.MR, right verbs.Access, cfg *Config) error {
	if right == verbs.RemoteWrite {
		right |= verbs.LocalWrite
	}
	stag, err := mr.Reregister(0, window(mr, cfg.Size), right)
	if err != nil {
		return err
	}
	if err := s.say(info{STag: stag, Size: uint32(cfg.Size)}); err != nil {
		return err
	}
	cfg.debug("advertised a buffer", "stag", stag, "bytes", cfg.Size)
	if _, err := s.hear(ctx); err != nil {
		return err
	}
	cfg.debug("the server went ahead")
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
