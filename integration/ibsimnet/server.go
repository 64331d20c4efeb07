package ibsimnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Host is a node of a [Server]'s network: a channel adapter with one port.
type Host struct {
	Name string // in a client's SIM_HOST
	LID  mad.LID
	GUID mad.GUID
	// PortInfo is what a client's /sys says of its port: LID, MasterSMLID, GIDPrefix, State.
	PortInfo mad.PortInfo
}

// Answer is a MAD for the clients of a host.
type Answer struct {
	To  mad.LID
	MAD mad.MAD
}

// Handler takes a MAD that a client at a host sends to the port to, and returns what is to be delivered: any number of
// MADs, or none if the request is dropped in silence. reached is false if there is no such port: the client is told, as by ibsim. It is called by one
// goroutine at a time.
type Handler func(from Host, to mad.LID, m mad.MAD) (answers []Answer, reached bool)

// maxClients bounds the clients that are attached at a time. ibsim has 10.
const maxClients = 32

// writeTimeout is how long the network waits for a client that does not read.
const writeTimeout = 2 * time.Second

// Server is a network for programs with libumad2sim. It has the segments of RMPP acknowledged, as the kernel does on a real device, and passes them on to the
// client in order.
type Server struct {
	socket  string
	handler Handler
	hosts   []Host
	ctl     *net.UnixConn
	wg      sync.WaitGroup

	mu      sync.Mutex // guards the fields below it; held while handler runs
	clients map[uint32]*attached
	closed  bool
}

// attached is a client.
type attached struct {
	host Host
	conn *net.UnixConn // the server's end, NAME:outN
	in   *net.UnixAddr // the client's end
	// transfers are the answers in segments that have not ended, by transaction ID. Guarded by Server.mu.
	transfers map[uint64]*mad.Receiver
}

// Listen makes a network of hosts whose sockets are named socket. The first host is that of clients that name none. It fails if
// the name is in use.
func Listen(socket string, hosts []Host, handler Handler) (*Server, error) {
	s := &Server{socket: socket, handler: handler, hosts: hosts, clients: map[uint32]*attached{}}
	var err error
	if s.ctl, err = net.ListenUnixgram("unixgram", unixAddr("%s:ctl", socket)); err != nil {
		return nil, fmt.Errorf("listen in place of ibsim %q: %w", socket, err)
	}
	s.wg.Go(s.control)
	return s, nil
}

// control answers control messages until the server is closed.
func (s *Server) control() {
	var b [controlLen + 1]byte
	for {
		n, from, err := s.ctl.ReadFromUnix(b[:])
		if err != nil {
			return // closed
		}
		m, err := parseControl(b[:n])
		if err != nil {
			continue
		}
		if err := s.answer(&m); err != nil {
			m.kind = controlError
		}
		from.Name += "\x00"                    // which package net takes for the end of the name, not for a part of it
		s.ctl.WriteToUnix(m.append(nil), from) // who asks and leaves gets none
	}
}

var errClient = errors.New("ibsimnet: no such client, host or message")

// answer puts the answer to a control message in its place.
func (s *Server) answer(m *control) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.kind == controlConnect {
		return s.connectLocked(m)
	}
	c := s.clients[m.client]
	switch {
	case c == nil && m.kind == controlDisconnect:
		return nil // it was given up before
	case c == nil:
		return errClient
	}
	switch m.kind {
	case controlDisconnect:
		s.disconnectLocked(m.client)
	case controlVendor:
		m.data = [controlDataLen]byte{}
		binary.NativeEndian.PutUint32(m.data[:], mad.Vendor)
		binary.NativeEndian.PutUint64(m.data[16:], 1)
	case controlNodeInfo:
		m.data = [controlDataLen]byte{}
		// libumad2sim makes the port's GUID of the node's and the port's number.
		mad.NodeInfo{
			BaseVersion: mad.BaseVersion, ClassVersion: mad.SMPClassVersion, Type: mad.NodeCA, Ports: 1, PartitionCap: mad.PKeysPerBlock, LocalPort: 1,
			SystemImageGUID: c.host.GUID - 1, NodeGUID: c.host.GUID - 1, PortGUID: c.host.GUID, VendorID: mad.Vendor,
		}.Append(m.data[:0])
	case controlPortInfo:
		c.host.PortInfo.Append(m.data[:0])
	case controlPKeys:
		mad.PKeyTable{PKeys: [mad.PKeysPerBlock]uint16{0xffff}}.Append(m.data[:0])
	case controlSetIsSM: // whether there is a manager is not the client's business here
	default:
		return errClient
	}
	return nil
}

func (s *Server) connectLocked(m *control) error {
	a := m.attachment()
	if len(s.clients) >= maxClients || s.closed {
		return errClient
	}
	host := s.hosts[0]
	if a.node != "" {
		found := false
		for _, h := range s.hosts {
			if h.Name == a.node {
				host, found = h, true
			}
		}
		if !found {
			return fmt.Errorf("host %q: %w", a.node, errClient)
		}
	}
	var id uint32
	for s.clients[id] != nil {
		id++
	}
	conn, err := net.ListenUnixgram("unixgram", unixAddr("%s:out%d", s.socket, id))
	if err != nil {
		return err
	}
	c := &attached{host: host, conn: conn, in: unixAddr("%s:in%d", s.socket, a.id), transfers: map[uint64]*mad.Receiver{}}
	s.clients[id] = c
	a.id, a.node = id, host.Name
	a.put(m)
	s.wg.Go(func() { s.serve(id, c) })
	return nil
}

func (s *Server) disconnectLocked(id uint32) {
	if c := s.clients[id]; c != nil {
		c.conn.Close()
		delete(s.clients, id)
	}
}

// serve takes a client's packets until it is disconnected.
func (s *Server) serve(id uint32, c *attached) {
	var b [packetLen + 1]byte
	for {
		n, err := c.conn.Read(b[:])
		if err != nil {
			return
		}
		if p, err := parsePacket(b[:n]); err == nil {
			s.take(id, c, p)
		}
	}
}

// clientShift is where in a transaction ID the network has the number of the client that asks, as ibsim does: answers find their way by it.
const clientShift = 48

// take hands a client's packet to the handler and delivers what comes of it.
func (s *Server) take(id uint32, c *attached, p packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := p.mad.Header()
	if h.Method.Response() || h.Method == mad.MethodTrapRepress {
		s.handler(c.host, p.dlid, p.mad) // it is answered by nobody
		return
	}
	h.TransactionID = h.TransactionID&(1<<clientShift-1) | uint64(id)<<clientShift
	p.mad.SetHeader(h)
	to := p.dlid
	if h.Class == mad.ClassSubnDirected {
		smp, err := mad.ParseSMP(&p.mad)
		if err != nil || smp.HopCount() != 0 {
			s.unreachableLocked(id, c, p) // the only directed route here is the one to the client's own port
			return
		}
		to = c.host.LID
	}
	answers, reached := s.handler(c.host, to, p.mad)
	if !reached {
		s.unreachableLocked(id, c, p)
		return
	}
	for len(answers) > 0 {
		a := answers[0]
		answers = append(answers[1:], s.deliverLocked(a)...)
	}
}

// unreachableLocked tells a client that nobody takes its packet.
func (s *Server) unreachableLocked(id uint32, c *attached, p packet) {
	p.status = statusTimeout
	s.writeLocked(id, c, p)
}

// Deliver delivers a MAD that no request has caused, such as a report.
func (s *Server) Deliver(a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for todo := []Answer{a}; len(todo) > 0; {
		next := s.deliverLocked(todo[0])
		todo = append(todo[1:], next...)
	}
}

// deliverLocked delivers a MAD to the client that has asked, or to all of a host's if it is no answer. A segment of RMPP is acknowledged
// at once; what comes of that is returned.
func (s *Server) deliverLocked(a Answer) (more []Answer) {
	h := a.MAD.Header()
	for id, c := range s.clients {
		if c.host.LID != a.To || h.Method.Response() && uint64(id) != h.TransactionID>>clientShift {
			continue
		}
		length := mad.MADLen
		if sa, err := mad.ParseSA(&a.MAD); err == nil && sa.RMPP.Active() {
			more = append(more, s.acknowledgeLocked(c, &sa)...)
			if sa.RMPP.Flags&mad.RMPPLast != 0 {
				length = min(int(sa.RMPP.Length)+saHead, mad.MADLen)
			}
		}
		s.writeLocked(id, c, packet{dlid: a.To, slid: s.hosts[0].LID, dqp: 1, sqp: 1, length: uint64(length), mad: a.MAD})
	}
	return more
}

// acknowledgeLocked has the sender of a segment go on, and returns what it sends next.
func (s *Server) acknowledgeLocked(c *attached, sa *mad.SA) []Answer {
	r := c.transfers[sa.TransactionID]
	if r == nil {
		r = mad.NewReceiver(sa.TransactionID, mad.MaxTable, mad.MaxWindow)
		c.transfers[sa.TransactionID] = r
	}
	reply, send, _ := r.Receive(sa) // a wrong segment is passed on as it is: the program may judge it
	if r.Done() {
		delete(c.transfers, sa.TransactionID)
	}
	if !send {
		return nil
	}
	more, _ := s.handler(c.host, s.hosts[0].LID, reply)
	return more
}

// saHead is how much of an SA MAD precedes what RMPP's PayloadLength counts.
const saHead = mad.MADLen - mad.SADataLen - 20

// writeLocked sends a packet to a client. One that is gone or does not read is given up: a program that has waited long enough
// detaches, and its library, which then reads no more, waits for the answer to that.
func (s *Server) writeLocked(id uint32, c *attached, p packet) {
	c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := c.conn.WriteToUnix(p.append(nil), c.in); err != nil {
		s.disconnectLocked(id)
	}
}

// Environment is what a program needs to be a client at host: variables for its environment, in front of those that it has. preload are libraries
// to be loaded behind libumad2sim. It fails if libumad2sim is missing.
func Environment(socket, host string, preload ...string) ([]string, error) {
	library, err := umad2sim()
	if err != nil {
		return nil, err
	}
	return []string{
		"LD_PRELOAD=" + strings.Join(append([]string{library}, preload...), ":"),
		"IBSIM_SOCKNAME=" + socket,
		"SIM_HOST=" + host,
	}, nil
}

// Close ends the network. It waits for what is being handled.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for id := range s.clients {
		s.disconnectLocked(id)
	}
	s.mu.Unlock()
	err := s.ctl.Close()
	s.wg.Wait()
	return err
}
