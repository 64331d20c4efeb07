package rping

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/verbs"
)

// Serve accepts a client and answers its pings until it closes the stream. It
// returns how many there were. It fails when the stream does not end gracefully, and
// with ctx's error.
func Serve(ctx context.Context, ulp *verbs.ULP, req *verbs.ConnRequest, cfg Config) (done int, err error) {
	s, err := newSide(ulp, cfg.Trust, verbs.LocalWrite)
	if err != nil {
		return 0, errors.Join(err, req.Reject(ctx, nil))
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	if s.qp, err = req.Accept(ctx, s.pd, verbs.AcceptConfig{QP: s.config(), Prepare: s.listen}); err != nil {
		return 0, err
	}
	cfg.debug("accepted", "flow", s.qp.Flow(), "protection", s.qp.Protection().Kind())
	for ; ; done++ {
		source, err := s.hear(ctx)
		if errors.Is(err, errEnded) {
			return done, nil
		}
		if err == nil {
			err = s.pong(ctx, source, &cfg)
		}
		if err != nil {
			return done, fmt.Errorf("ping %d: %w", done, err)
		}
	}
}

// pong fetches a payload and brings it back.
func (s *side) pong(ctx context.Context, source info, cfg *Config) error {
	if source.Size > MaxSize {
		return fmt.Errorf("rping: the client has a buffer of %d bytes, at most %d are possible", source.Size, MaxSize)
	}
	data := s.data[0]
	cfg.debug("reading", "stag", source.STag, "to", source.TO, "bytes", source.Size)
	err := s.qp.PostSend(&verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: data, Len: source.Size}},
		RemoteSTag: source.STag, RemoteTO: source.TO})
	if err != nil {
		return err
	}
	if _, err := s.wait(ctx, verbs.WCRead); err != nil {
		return err
	}
	ping := text(data.Bytes()[:source.Size])
	if cfg.Each != nil {
		cfg.Each(ping)
	}
	if err := s.say(info{}); err != nil {
		return err
	}
	sink, err := s.hear(ctx)
	if err != nil {
		return err
	}
	n := min(uint32(len(ping)+1), source.Size, sink.Size)
	cfg.debug("writing", "stag", sink.STag, "to", sink.TO, "bytes", n)
	err = s.qp.PostSend(&verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.More, SGL: []verbs.SGE{{MR: data, Len: n}}, RemoteSTag: sink.STag, RemoteTO: sink.TO})
	if err != nil {
		return err
	}
	// It follows the Write, so the text is there when the client gets the answer.
	return s.say(info{})
}
