package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"

	"github.com/pion/logging"
	pion "github.com/pion/sctp"
)

// dialogue is what client and server talk on: messages on one stream,
// unordered as DDP's are, and words about them on another.
type dialogue struct {
	words, data *pion.Stream
	room        chan struct{}
}

// Streams of the association.
const (
	wordStream = 1
	dataStream = 2
)

// greeting is the first word: what the client wants.
type greeting struct {
	Mode string
	Size int
}

// packetSize is the longest SCTP packet in bytes that fits UDP over IPv4 on a
// wire with an MTU of 1500.
const packetSize = 1472

// window is the receive window in bytes.
const window = 4 << 20

func config(c net.Conn) pion.Config {
	return pion.Config{NetConn: c, LoggerFactory: logging.NewDefaultLoggerFactory(), MTU: packetSize, MaxReceiveBufferSize: window}
}

// grow gives a socket room for a window.
func grow(c *net.UDPConn) {
	// The kernel may give less.
	_ = c.SetReadBuffer(2 * window)
	_ = c.SetWriteBuffer(2 * window)
}

// queued is how many bytes a sender queues at most before it waits: pion itself
// takes whatever it is given.
const queued = 1 << 20

func newDialogue(words, data *pion.Stream) *dialogue {
	s := &dialogue{words: words, data: data, room: make(chan struct{}, 1)}
	words.SetReliabilityParams(false, pion.ReliabilityTypeReliable, 0)
	data.SetReliabilityParams(true, pion.ReliabilityTypeReliable, 0)
	data.SetBufferedAmountLowThreshold(queued / 2)
	data.OnBufferedAmountLow(func() {
		select {
		case s.room <- struct{}{}:
		default:
		}
	})
	return s
}

// open is the client's beginning of a dialogue.
func open(a *pion.Association, mode string, size int) (*dialogue, error) {
	words, err := a.OpenStream(wordStream, pion.PayloadTypeWebRTCBinary)
	if err != nil {
		return nil, err
	}
	data, err := a.OpenStream(dataStream, pion.PayloadTypeWebRTCBinary)
	if err != nil {
		return nil, err
	}
	s := newDialogue(words, data)
	b, err := json.Marshal(greeting{mode, size})
	if err != nil {
		return nil, err
	}
	if _, err := words.Write(b); err != nil {
		return nil, err
	}
	_, err = s.hear() // the server is ready
	return s, err
}

// accept is the server's.
func accept(a *pion.Association) (s *dialogue, mode string, size int, err error) {
	words, err := a.AcceptStream()
	if err != nil {
		return nil, "", 0, err
	}
	buf := make([]byte, 256)
	n, err := words.Read(buf)
	if err != nil {
		return nil, "", 0, err
	}
	var g greeting
	if err := json.Unmarshal(buf[:n], &g); err != nil {
		return nil, "", 0, err
	}
	if g.Size < 1 || g.Size > 1<<16 {
		return nil, "", 0, fmt.Errorf("messages of %d bytes are asked for", g.Size)
	}
	data, err := a.OpenStream(dataStream, pion.PayloadTypeWebRTCBinary)
	if err != nil {
		return nil, "", 0, err
	}
	s = newDialogue(words, data)
	return s, g.Mode, g.Size, s.tell(0)
}

// send sends a message once there is room for it.
func (s *dialogue) send(p []byte) error {
	for s.data.BufferedAmount() >= queued {
		<-s.room
	}
	_, err := s.data.Write(p)
	return err
}

// tell and hear exchange numbers.
func (s *dialogue) tell(n uint64) error {
	_, err := s.words.Write(binary.BigEndian.AppendUint64(nil, n))
	return err
}

func (s *dialogue) hear() (uint64, error) {
	var b [8]byte
	n, err := s.words.Read(b[:])
	if err == nil && n != len(b) {
		err = fmt.Errorf("a number of %d bytes has come", n)
	}
	return binary.BigEndian.Uint64(b[:]), err
}
