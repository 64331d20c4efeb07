package rdmap

import "sync"

// StagePool shares among Streams the buffers for copies of payloads that may change
// while they are being sent. The zero value is ready to use.
type StagePool struct{ pool sync.Pool }

type stageChunk [stageLen]byte

func (p *StagePool) get() *stageChunk {
	if p != nil {
		if c, ok := p.pool.Get().(*stageChunk); ok {
			return c
		}
	}
	return new(stageChunk)
}

// stage holds the copies of one batch.
type stage struct {
	pool   *StagePool
	on     bool // the LLP computes checksums before it writes
	chunks []*stageChunk
	used   int // bytes of the last one
}

// full reports whether the batch should be sent before more is copied.
func (g *stage) full() bool { return len(g.chunks) >= maxStage }

// copy returns a copy of a segment's pieces that stays until release.
func (g *stage) copy(pieces ...[]byte) []byte {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	if len(g.chunks) == 0 || g.used+n > stageLen {
		g.chunks, g.used = append(g.chunks, g.pool.get()), 0
	}
	c := g.chunks[len(g.chunks)-1][g.used : g.used : g.used+n]
	g.used += n
	for _, p := range pieces {
		c = append(c, p...)
	}
	return c
}

// release returns the buffers.
func (g *stage) release() {
	for i, c := range g.chunks {
		if g.pool != nil {
			g.pool.pool.Put(c)
		}
		g.chunks[i] = nil
	}
	g.chunks, g.used = g.chunks[:0], 0
}
