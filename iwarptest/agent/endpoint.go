package agent

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// Features are those of the suite's features that the agent has, on soft-iWARP.
const Features = conformance.SendInvalidate | conformance.SGL | conformance.Inline | conformance.Fence | conformance.ForeignPD |
	conformance.FlushesReceives

// Depths of a stream. Those of Reads are what the agent asks for.
const (
	queueDepth = 64
	readDepth  = 4
	maxSGEs    = 6  // SIW_MAX_SGE
	maxInline  = 64 // a little less than siw's
)

// Endpoint is a stream of the agent as an end of the suite.
type Endpoint struct {
	a       *Process
	conn    int
	ord     int
	s       *stream
	regions []string // the agent's names
}

var _ conformance.Endpoint = (*Endpoint)(nil)

// Can implements conformance.Endpoint.
func (e *Endpoint) Can(f conformance.Feature) bool { return Features&f == f }

// Limits implements conformance.Endpoint.
func (e *Endpoint) Limits() conformance.Limits {
	return conformance.Limits{MaxSend: queueDepth, MaxRecv: queueDepth, ORD: e.ord, SGEs: maxSGEs, Inline: maxInline}
}

// Region implements conformance.Endpoint.
func (e *Endpoint) Region(n int, access conformance.Access) (conformance.Region, error) {
	rights, pd := "-", 0
	for _, r := range []struct {
		is     conformance.Access
		letter string
	}{{conformance.LocalWrite, "l"}, {conformance.RemoteRead, "r"}, {conformance.RemoteWrite, "w"}} {
		if access&r.is != 0 {
			rights += r.letter
		}
	}
	if access&conformance.AccessForeign != 0 {
		pd = 1
	}
	words, err := e.a.Do("reg %d %d %s %d", n, conformance.Guard, rights, pd)
	if err != nil {
		return conformance.Region{}, err
	}
	r := conformance.Region{Len: n}
	if _, err := fmt.Sscan(strings.Join(words, " "), &r.ID, &r.STag, &r.TO); err != nil {
		return r, fmt.Errorf("agent: reg answers %q: %w", words, err)
	}
	e.regions = append(e.regions, words[0])
	return r, nil
}

// Store implements conformance.Endpoint.
func (e *Endpoint) Store(r conformance.Region, off int, p []byte) error {
	return e.a.do(fmt.Sprintf("store %d %d %d", r.ID, off, len(p)), p, noPayload).err
}

// Load implements conformance.Endpoint.
func (e *Endpoint) Load(r conformance.Region, off, n int) ([]byte, error) {
	ans := e.a.do(fmt.Sprintf("load %d %d %d", r.ID, off, n), nil, n)
	return ans.payload, ans.err
}

// Invalidate implements conformance.Endpoint.
func (e *Endpoint) Invalidate(r conformance.Region) error {
	_, err := e.a.Do("dereg %d", r.ID)
	return err
}

// elements is a scatter/gather list in the agent's syntax, without the empty elements
// of a longer list: for those siw follows a null pointer in the kernel.
func elements(sgl []conformance.SGE) string {
	var b strings.Builder
	for _, s := range sgl {
		if s.Len == 0 && len(sgl) > 1 {
			continue
		}
		fmt.Fprintf(&b, " %d %d %d", s.Region.ID, s.Off, s.Len)
	}
	return b.String()
}

// PostRecv implements conformance.Endpoint.
func (e *Endpoint) PostRecv(id uint64, sgl []conformance.SGE) error {
	return e.post(id, true, fmt.Sprintf("recv %d %d%s", e.conn, id, elements(sgl)))
}

// PostSend implements conformance.Endpoint.
func (e *Endpoint) PostSend(wr conformance.WR) error {
	flags, stag := "-", wr.STag
	for _, f := range []struct {
		is     conformance.Flags
		letter string
	}{{conformance.Signaled, "s"}, {conformance.Solicited, "e"}, {conformance.Fenced, "f"}, {conformance.FromInline, "i"}} {
		if wr.Flags&f.is != 0 {
			flags += f.letter
		}
	}
	op := map[conformance.Op]string{conformance.OpSend: "send", conformance.OpWrite: "write", conformance.OpRead: "read",
		conformance.OpImmediate: "sendimm", conformance.OpFetchAdd: "fetchadd", conformance.OpCmpSwap: "cmpswap"}[wr.Op]
	if wr.Flags&conformance.WithInvalidate != 0 {
		op, stag = "sendinv", wr.Invalidate
	}
	return e.post(wr.ID, wr.Flags&conformance.Signaled != 0, fmt.Sprintf("send %d %d %s %s %d %d%s", e.conn, wr.ID, op, flags, stag, wr.TO, elements(wr.SGL)))
}

func (e *Endpoint) post(id uint64, signaled bool, command string) error {
	e.s.posted(id, signaled)
	_, err := e.a.Do("%s", command)
	if err != nil {
		e.s.refused(id)
	}
	return err
}

// Completion implements conformance.Endpoint.
func (e *Endpoint) Completion(ctx context.Context) (wc conformance.WC, err error) {
	have := false
	werr := e.s.wait(ctx, func() bool {
		if have = len(e.s.wcs) > 0; have {
			wc = e.s.wcs[0]
			e.s.wcs = e.s.wcs[1:]
		}
		return have || e.s.over
	})
	if werr == nil && !have {
		werr = io.EOF
	}
	return wc, werr
}

// Close implements conformance.Endpoint.
func (e *Endpoint) Close() error {
	_, err := e.a.Do("close %d", e.conn)
	return err
}

// Abort implements conformance.Endpoint.
func (e *Endpoint) Abort() error {
	_, err := e.a.Do("abort %d", e.conn)
	return err
}

// End implements conformance.Endpoint. libibverbs does not say how.
func (e *Endpoint) End(ctx context.Context) (conformance.End, error) {
	if err := e.s.wait(ctx, func() bool { return e.s.over }); err != nil {
		return conformance.End{}, fmt.Errorf("agent: the stream does not end: %w", err)
	}
	return conformance.End{}, nil
}

// Release frees what belongs to the stream. It fails with what the agent says.
func (e *Endpoint) Release() error {
	_, err := e.a.Do("free %d", e.conn)
	e.a.forget(e.conn)
	for _, r := range e.regions {
		if _, ferr := e.a.Do("forget %s", r); err == nil {
			err = ferr
		}
	}
	return err
}
