package directory

import (
	"context"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// port is the way to one host: a link, or this host itself, which has none.
type port struct {
	guid    mad.GUID // of the host at the other end
	link    *gsi.Link
	in, out chan mad.Packet
	dropped atomic.Uint64 // messages that were too many, or no MADs
}

func newPort(guid mad.GUID) *port {
	return &port{guid: guid, in: make(chan mad.Packet, queue), out: make(chan mad.Packet, queue)}
}

// ended is closed when the way has ended; that of this host itself does not.
func (p *port) ended() <-chan struct{} {
	if p.link == nil {
		return nil
	}
	return p.link.Done()
}

// Receive implements gsi.Handler.
func (p *port) Receive(_ *gsi.Link, message []byte) {
	packet, err := mad.ParsePacket(message)
	if err != nil {
		p.dropped.Add(1)
		return
	}
	p.put(p.in, packet)
}

// send has a packet sent to the host, unless too many wait.
func (p *port) send(packet mad.Packet) { p.put(p.out, packet) }

func (p *port) put(to chan mad.Packet, packet mad.Packet) {
	select {
	case to <- packet:
	default:
		p.dropped.Add(1)
	}
}

// run deals with what the host sends, and sends what waits for it, until the link has ended or ctx does. It closes the link.
func (p *port) run(ctx context.Context, receive func(mad.Packet)) {
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		p.sendAll(ctx)
	}()
	for open := true; open; {
		select {
		case packet := <-p.in:
			receive(packet)
		case <-p.link.Done():
			open = false
		case <-ctx.Done():
			open = false
		}
	}
	cancel()
	<-sent
	p.link.Close()
}

func (p *port) sendAll(ctx context.Context) {
	var message []byte
	for {
		select {
		case packet := <-p.out:
			message = packet.Append(message[:0])
			if p.link.Send(ctx, message) != nil {
				return // the link has ended, or ctx
			}
		case <-ctx.Done():
			return
		}
	}
}
