package history

import (
	"net"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// NBD commands and flags, as the protocol document numbers them.
const (
	nbdRead, nbdWrite, nbdFlush = 0, 1, 3
	nbdFUA                      = 1
)

// client is an NBD client that keeps many requests under way and records all of them.
type client struct {
	rec  *recorder
	conn *session
	nbd  *nbdtest.Client

	sending sync.Mutex

	mu      sync.Mutex
	gone    bool
	cookie  uint64
	waiting map[uint64]*op
	over    chan struct{} // closed when no answer can come any more
}

// dialClient connects to an NBD socket.
func dialClient(rec *recorder, disk uint8, socket, export string) (*client, error) {
	s := rec.open(disk)
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	n, err := nbdtest.Connect(nc, export, false)
	if err != nil {
		nc.Close()
		return nil, err
	}
	c := &client{rec: rec, conn: s, nbd: n, waiting: map[uint64]*op{}, over: make(chan struct{})}
	go c.receive()
	return c, nil
}

func (c *client) receive() {
	defer close(c.over)
	for {
		r, err := c.nbd.Receive(func(cookie uint64) int {
			c.mu.Lock()
			defer c.mu.Unlock()
			if o := c.waiting[cookie]; o != nil && o.kind == opRead {
				return int(o.blocks * blockSize)
			}
			return 0
		})
		c.mu.Lock()
		if err != nil {
			c.gone = true
			c.nbd.Close()
			c.rec.end(c.conn)
			for _, o := range c.waiting {
				c.rec.complete(o, unknown, 0, nil)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		o := c.waiting[r.Cookie]
		delete(c.waiting, r.Cookie)
		c.mu.Unlock()
		switch {
		case o == nil: // an answer to no request: the connection is of no use
			c.nbd.Close()
		case r.Error != 0:
			c.rec.complete(o, failed, syscall.Errno(r.Error), nil)
		default:
			c.rec.complete(o, succeeded, 0, r.Data)
		}
	}
}

// start sends a request. Requests on a connection that has ended are not part of the
// history.
func (c *client) start(kind opKind, block, blocks uint32, fua bool) *op {
	o := &op{kind: kind, disk: c.conn.disk, block: block, blocks: blocks, fua: fua, conn: c.conn}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		o.out, o.done = unknown, make(chan struct{})
		close(o.done)
		return o
	}
	c.rec.invoke(o)
	c.cookie++
	cookie := c.cookie
	c.waiting[cookie] = o
	c.mu.Unlock()
	var flags, typ uint16
	var payload []byte
	n, off := blocks*blockSize, uint64(block)*blockSize
	switch kind {
	case opRead:
		typ = nbdRead
	case opWrite:
		typ, payload = nbdWrite, make([]byte, n)
		for i := range blocks {
			fillBlock(payload[i*blockSize:(i+1)*blockSize], o.disk, block+i, o.write)
		}
	case opFlush:
		typ, n, off = nbdFlush, 0, 0
	}
	if fua {
		flags = nbdFUA
	}
	_ = c.nbd.Send(flags, typ, cookie, off, n, payload) // the receiver meets the same error
	return o
}

// kill ends the connection as if its process were killed.
func (c *client) kill() {
	c.nbd.Close()
	<-c.over
}

// alive reports whether the connection can be used.
func (c *client) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone
}
