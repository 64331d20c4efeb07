package delegate

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

const (
	// maxMessage bounds a program's message, in bytes without its length. Reasons are the longest part of one.
	maxMessage = 4 << 10
	// maxTold bounds a daemon's: terms may have many ports and peers.
	maxTold = 128 << 10
	// maxWill bounds the packet that a daemon sends when a program is gone, in bytes: an ABORT is shorter.
	maxWill = 256
	// maxReason bounds what is told of an error, in bytes.
	maxReason = 2 << 10
	// sendTime bounds the sending of a message to an end that does not read.
	sendTime = 10 * time.Second
	// maxSockets is how many sockets may have come before the messages that are about them. A message brings one.
	maxSockets = 4
	// maxRights come at most with what is received at a time (SCM_MAX_FD). There is room for as many: what there was none for
	// would be closed by the call that receives, and that takes as long as its sender likes.
	maxRights = 253
)

// What a message is.
const (
	opPorts   = "ports"
	opPrepare = "prepare"
	opAdmit   = "admit"
	opDone    = "done"
	opAnswer  = "answer"
	opEnded   = "ended"
	opTerms   = "terms"
	opReport  = "report"
	opLane    = "lane"
)

// message is one of either direction; the comments say which fields go with what.
type message struct {
	Op       string         `json:"op"`
	ID       uint64         `json:"id,omitempty"`       // of the request, in all that is about it
	Protocol int            `json:"protocol,omitempty"` // ports, prepare
	Local    netip.AddrPort `json:"local,omitzero"`
	Remote   netip.AddrPort `json:"remote,omitzero"`
	Outgoing bool           `json:"outgoing,omitempty"` // admit
	Will     []byte         `json:"will,omitempty"`     // admit: the packet that ends an association
	Low      uint16         `json:"low,omitempty"`      // answer to ports
	High     uint16         `json:"high,omitempty"`
	Peer     string         `json:"peer,omitempty"` // answer to admit
	Kind     string         `json:"kind,omitempty"`
	Failure  string         `json:"failure,omitempty"` // answer, ended
	Reason   string         `json:"reason,omitempty"`
	Terms    *Terms         `json:"terms,omitempty"`   // terms
	Reports  []report       `json:"reports,omitempty"` // report
	Lane     *lane          `json:"lane,omitempty"`    // lane

	about *Association // of a lane that is filled in when it is sent
}

func (m *message) flow() transport.Flow {
	return transport.Flow{Protocol: transport.Protocol(m.Protocol), Local: m.Local, Remote: m.Remote}
}

// MaxPeers are as many as Terms may have.
const MaxPeers = 2048

// Terms are what a program may have, as the daemon says when it connects and when they change.
type Terms struct {
	// Account is the name by which the daemon knows the user; "" is root.
	Account string `json:"account,omitempty"`
	// Ports are those of its flows with other hosts, on the side that is dialled.
	Ports []Ports `json:"ports"`
	// Peers are the addresses of hosts that it may have flows with; nil: it is not told.
	Peers []netip.Addr `json:"peers,omitempty"`
	// Listen says that it may take connections.
	Listen bool `json:"listen,omitempty"`
}

// Ports are a range of ports, both ends included.
type Ports struct {
	Low  uint16 `json:"low"`
	High uint16 `json:"high"`
	UDP  bool   `json:"udp,omitempty"` // of SCTP in UDP, otherwise of TCP
}

func (p Ports) String() string {
	text := fmt.Sprintf("%d to %d", p.Low, p.High)
	if p.Low == p.High {
		text = fmt.Sprint(p.Low)
	}
	if p.UDP {
		text += " over sctp-udp"
	}
	return text
}

// Has reports whether a port is one of them.
func (t *Terms) Has(protocol transport.Protocol, port uint16) bool {
	return slices.ContainsFunc(t.Of(protocol), func(p Ports) bool { return p.Low <= port && port <= p.High })
}

// Of returns the ports of a protocol.
func (t *Terms) Of(protocol transport.Protocol) (out []Ports) {
	for _, p := range t.Ports {
		if p.UDP == (protocol == transport.ProtoUDP) {
			out = append(out, p)
		}
	}
	return out
}

// parse reads one message, without its length.
func parse(b []byte) (m message, err error) {
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("delegate: a message is no JSON object of this protocol: %w", err)
	}
	return m, nil
}

// link is a connection on which messages and sockets are sent and received.
type link struct {
	*net.UnixConn

	sending sync.Mutex // held while a message is sent

	in      []byte // received, and not parsed yet; one goroutine receives
	sockets []*Socket
	account *Account // nil: no socket is expected
	oob     []byte

	closed atomic.Bool
}

// Close ends the connection for both ends, and what waits for it. It does not wait: to close it closes the descriptors that
// have not been received.
func (l *link) Close() error {
	if l.account == nil {
		return l.UnixConn.Close()
	}
	if !l.closed.Swap(true) {
		_ = errors.Join(l.CloseWrite(), l.CloseRead()) // they fail when the other end has closed it
		l.account.throw(func() { l.UnixConn.Close() }, nil)
	}
	return nil
}

// send sends a message, and a socket with it unless fd is negative. It fails with the connection's error, and the
// connection is of no use then.
func (l *link) send(m *message, fd int) error {
	m.Reason = m.Reason[:min(len(m.Reason), maxReason)]
	if m.about != nil {
		m.Lane = m.about.take()
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	most := maxMessage
	if l.account != nil {
		most = maxTold
	}
	if len(body) > most {
		return fmt.Errorf("delegate: a message of %d bytes, at most %d are possible", len(body), most)
	}
	b := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	n, _, err := l.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = l.Write(b[n:])
	}
	if err != nil {
		l.Close() // half a message is none, and the receiver finds out
	}
	return err
}

// isEnd reports whether an error of a link means that the other end has closed it, or this one.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// receive waits for a message. The socket that came with it is taken by socket.
func (l *link) receive() (message, error) {
	for {
		if len(l.in) >= 4 {
			n, most := binary.BigEndian.Uint32(l.in), uint32(maxMessage)
			if l.account == nil {
				most = maxTold
			}
			if n > most {
				return message{}, fmt.Errorf("delegate: a message of %d bytes, at most %d are possible", n, most)
			}
			if len(l.in) >= 4+int(n) {
				m, err := parse(l.in[4 : 4+n])
				l.in = append(l.in[:0], l.in[4+n:]...)
				return m, err
			}
		}
		if err := l.fill(); err != nil {
			return message{}, err
		}
	}
}

// fill receives some bytes, and what sockets come with them. Linux ends a read behind those that have a socket.
func (l *link) fill() error {
	if l.closed.Load() {
		return net.ErrClosed
	}
	if l.account.IsFull() {
		return errors.New("delegate: what programs of that account have handed over cannot be closed")
	}
	var b [maxMessage + 4]byte
	if l.oob == nil {
		l.oob = make([]byte, unix.CmsgSpace(4*maxRights))
	}
	n, oobn, flags, _, err := l.ReadMsgUnix(b[:], l.oob)
	if rights, rerr := l.socketsOf(l.oob[:oobn]); rerr != nil {
		err = errors.Join(err, rerr)
	} else {
		l.sockets = append(l.sockets, rights...)
	}
	switch {
	case err != nil:
		return err
	case flags&unix.MSG_CTRUNC != 0 || len(l.sockets) > maxSockets:
		return fmt.Errorf("delegate: more than %d sockets that no message is about", maxSockets)
	case n == 0:
		return io.EOF
	}
	l.in = append(l.in, b[:n]...)
	return nil
}

func (l *link) socketsOf(oob []byte) (sockets []*Socket, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range all {
		fds, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			sockets = append(sockets, newSocket(fd, l.account))
		}
	}
	return sockets, nil
}

// socket is the one that came with the message that was received last; nil: there is none.
func (l *link) socket() *Socket {
	if len(l.sockets) == 0 {
		return nil
	}
	s := l.sockets[0]
	l.sockets = l.sockets[1:]
	return s
}

// closeSockets closes those that nobody has taken.
func (l *link) closeSockets() {
	for _, s := range l.sockets {
		s.close()
	}
	l.sockets = nil
}
