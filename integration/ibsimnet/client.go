package ibsimnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// ErrUnreachable means that nobody in the network takes what was sent.
var ErrUnreachable = errors.New("ibsimnet: unreachable")

// Client is at a node of ibsim's network. It is for one goroutine at a time.
type Client struct {
	ctl, data *net.UnixConn
	out       *net.UnixAddr // of the network's end of data
	id        uint32
	next      uint32 // transaction
}

// clientIDs numbers the clients of this process. ibsim takes any number but 0.
var clientIDs atomic.Uint32

// unixAddr returns an abstract address. Its name ends with a zero byte, as ibsim's do.
func unixAddr(format string, args ...any) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + fmt.Sprintf(format, args...) + "\x00"}
}

// Dial attaches to the node called node of the network whose sockets are named socket. It fails if there is no such network
// or node, or ibsim has ten clients already.
func Dial(ctx context.Context, socket, node string) (*Client, error) {
	c := &Client{}
	if err := c.dial(ctx, socket, node); err != nil {
		c.Close()
		return nil, fmt.Errorf("attach to node %q of ibsim %q: %w", node, socket, err)
	}
	return c, nil
}

func (c *Client) dial(ctx context.Context, socket, node string) (err error) {
	own := clientIDs.Add(1) + 1<<24 // processes' numbers are lower
	if c.ctl, err = net.DialUnix("unixgram", unixAddr("%s:ctl%d", socket, own), unixAddr("%s:ctl", socket)); err != nil {
		return err
	}
	var m control
	m.kind = controlConnect
	attachment{id: own, node: node}.put(&m)
	// ibsim connects its end to the client's socket while it answers: so that must exist.
	in := unixAddr("%s:in%d", socket, own)
	if c.data, err = net.ListenUnixgram("unixgram", in); err != nil {
		return err
	}
	if err = c.control(ctx, &m); err != nil {
		return err
	}
	c.id = m.attachment().id
	c.out = unixAddr("%s:out%d", socket, c.id)
	return nil
}

// control sends a control message and puts the answer in its place.
func (c *Client) control(ctx context.Context, m *control) error {
	defer deadline(ctx, c.ctl)()
	m.client = c.id
	if _, err := c.ctl.Write(m.append(nil)); err != nil {
		return err
	}
	var b [controlLen + 1]byte
	n, err := c.ctl.Read(b[:])
	if err != nil {
		return err
	}
	answer, err := parseControl(b[:n])
	if err != nil {
		return err
	}
	if answer.kind == controlError {
		return fmt.Errorf("control message %d is refused", m.kind)
	}
	*m = answer
	return nil
}

// deadline has reads and writes of conn end with ctx, until the function that it returns is called.
func deadline(ctx context.Context, conn *net.UnixConn) (stop func()) {
	conn.SetDeadline(time.Time{})
	end := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return func() { end() }
}

// PortInfo returns what the network says of the client's own port. It fails as [Dial] does.
func (c *Client) PortInfo(ctx context.Context) (mad.PortInfo, error) {
	m := control{kind: controlPortInfo, length: controlDataLen}
	if err := c.control(ctx, &m); err != nil {
		return mad.PortInfo{}, fmt.Errorf("ask ibsim for the port's state: %w", err)
	}
	return mad.ParsePortInfo(m.data[:])
}

// Send sends a MAD to a QP of the port dlid. A request gets a transaction ID of the client's own, which is returned: 32 bits, the
// rest is the network's. An answer keeps its own. It fails with the socket's error.
func (c *Client) Send(ctx context.Context, dlid mad.LID, qp uint32, m mad.MAD) (transaction uint32, err error) {
	defer deadline(ctx, c.data)()
	if h := m.Header(); !h.Method.Response() {
		c.next++
		h.TransactionID = uint64(c.next)
		m.SetHeader(h)
	}
	p := packet{dlid: dlid, dqp: qp, sqp: qp, length: mad.MADLen, mad: m}
	if dlid == mad.LIDPermissive {
		p.slid = mad.LIDPermissive
	}
	if _, err := c.data.WriteToUnix(p.append(nil), c.out); err != nil {
		return 0, fmt.Errorf("send a MAD to LID %d: %w", dlid, err)
	}
	return uint32(m.TransactionID()), nil
}

// Receive returns the next MAD, how many of its bytes are meant, and the transaction's 32 bits. It fails with [ErrUnreachable] if what comes back is what was sent, with
// the context's error and with the socket's.
func (c *Client) Receive(ctx context.Context) (m mad.MAD, length int, transaction uint32, err error) {
	defer deadline(ctx, c.data)()
	var b [packetLen + 1]byte
	n, err := c.data.Read(b[:])
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return m, 0, 0, fmt.Errorf("receive a MAD: %w", err)
	}
	p, err := parsePacket(b[:n])
	if err != nil {
		return m, 0, 0, err
	}
	transaction = uint32(p.mad.TransactionID())
	if p.status != 0 {
		return m, 0, transaction, fmt.Errorf("status %d for transaction %d: %w", p.status, transaction, ErrUnreachable)
	}
	return p.mad, int(min(p.length, mad.MADLen)), transaction, nil
}

// Close leaves the network.
func (c *Client) Close() error {
	if c.ctl != nil && c.data != nil {
		m := control{kind: controlDisconnect}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c.control(ctx, &m)
		cancel()
	}
	for _, conn := range []*net.UnixConn{c.ctl, c.data} {
		if conn != nil {
			conn.Close()
		}
	}
	return nil
}
