package nbdtest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Client speaks NBD on a connection without judging what it sends, so that a
// test can send anything. Its numbers are its own, not the server's. Not safe
// for concurrent use, except that one goroutine may send while one receives.
type Client struct {
	net.Conn
	Structured bool // replies to reads are structured
	Extended   bool // headers are extended
	Size       uint64
	Flags      uint16 // transmission flags
}

// OptionReply is one reply to an option.
type OptionReply struct {
	Option, Type uint32
	Data         []byte
}

// IsError reports that the option failed.
func (r *OptionReply) IsError() bool { return r.Type&(1<<31) != 0 }

// Reply is a simple reply or one chunk of a structured reply.
type Reply struct {
	Structured bool
	Flags      uint16 // structured: 1 is the last chunk
	Type       uint16 // structured
	Cookie     uint64
	Error      uint32
	Offset     uint64 // of data
	Data       []byte // of a read; zeroes where the reply is a hole
	Message    string // of a structured error
	Context    uint32 // of a block status
	Extents    []Extent
}

// Extent is a descriptor of a block status.
type Extent struct{ Length, State uint64 }

// Hello receives the server's greeting and answers with flags (3: fixed newstyle, no
// zeroes). It fails with the connection's error, and at what is no greeting.
func Hello(c net.Conn, flags uint32) (*Client, error) {
	var b [18]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, err
	}
	if string(b[:16]) != "NBDMAGICIHAVEOPT" {
		return nil, fmt.Errorf("greeting %q", b[:])
	}
	_, err := c.Write(binary.BigEndian.AppendUint32(nil, flags))
	return &Client{Conn: c}, err
}

// Connect shakes hands and enters transmission of the export. It fails with the
// connection's error, and where the server refuses an option.
func Connect(c net.Conn, export string, structured bool) (*Client, error) {
	cl, err := Hello(c, 3)
	if err != nil {
		return nil, err
	}
	if structured {
		r, err := cl.Option(8, nil)
		if err != nil || r[0].Type != 1 {
			return nil, fmt.Errorf("structured replies: %v, %w", r, err)
		}
		cl.Structured = true
	}
	return cl, cl.Go(export)
}

// ConnectExtended is Connect with extended headers, and with base:allocation selected. It
// fails as Connect does.
func ConnectExtended(c net.Conn, export string) (*Client, error) {
	cl, err := Hello(c, 3)
	if err != nil {
		return nil, err
	}
	if r, err := cl.Option(11, nil); err != nil || r[0].Type != 1 {
		return nil, fmt.Errorf("extended headers: %v, %w", r, err)
	}
	cl.Structured, cl.Extended = true, true
	if r, err := cl.Option(10, MetaData(export, "base:allocation")); err != nil || len(r) != 2 {
		return nil, fmt.Errorf("base:allocation: %v, %w", r, err)
	}
	return cl, cl.Go(export)
}

// MetaData is the data of the options LIST_META_CONTEXT (9) and SET_META_CONTEXT (10).
func MetaData(export string, queries ...string) []byte {
	str := func(b []byte, s string) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	b := binary.BigEndian.AppendUint32(str(nil, export), uint32(len(queries)))
	for _, q := range queries {
		b = str(b, q)
	}
	return b
}

// Go enters transmission of the export. It fails with the connection's error, and where
// the server refuses the export.
func (c *Client) Go(export string) error {
	rs, err := c.Option(7, InfoData(export, 3))
	if err != nil {
		return err
	}
	if last := rs[len(rs)-1]; last.IsError() {
		return fmt.Errorf("export %q: error %#x: %s", export, last.Type, last.Data)
	}
	for _, r := range rs {
		if r.Type == 3 && len(r.Data) == 12 && r.Data[1] == 0 {
			c.Size, c.Flags = binary.BigEndian.Uint64(r.Data[2:]), binary.BigEndian.Uint16(r.Data[10:])
		}
	}
	return nil
}

// InfoData is the data of the options INFO (6) and GO (7).
func InfoData(export string, ids ...uint16) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(export)))
	b = append(b, export...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(ids)))
	for _, id := range ids {
		b = binary.BigEndian.AppendUint16(b, id)
	}
	return b
}

// SendOption sends an option. It fails with the connection's error.
func (c *Client) SendOption(option uint32, data []byte) error {
	b := append([]byte(nil), "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	_, err := c.Write(append(b, data...))
	return err
}

// Option sends an option and receives its replies, the final one last. It fails with
// the connection's error, and at what is no reply; a refusal is one
// (OptionReply.IsError).
func (c *Client) Option(option uint32, data []byte) ([]OptionReply, error) {
	if err := c.SendOption(option, data); err != nil {
		return nil, err
	}
	var all []OptionReply
	for {
		var h [20]byte
		if _, err := io.ReadFull(c, h[:]); err != nil {
			return all, err
		}
		r := OptionReply{Option: binary.BigEndian.Uint32(h[8:]), Type: binary.BigEndian.Uint32(h[12:])}
		if binary.BigEndian.Uint64(h[:]) != 0x3e889045565a9 || r.Option != option {
			return all, fmt.Errorf("reply to option %d: % x", option, h)
		}
		r.Data = make([]byte, binary.BigEndian.Uint32(h[16:]))
		if _, err := io.ReadFull(c, r.Data); err != nil {
			return all, err
		}
		all = append(all, r)
		if r.Type == 1 || r.IsError() {
			return all, nil
		}
	}
}

// AppendRequest appends a request to b.
func AppendRequest(b []byte, flags, typ uint16, cookie, off uint64, n uint32, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 0x25609513)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	b = binary.BigEndian.AppendUint32(b, n)
	return append(b, payload...)
}

// AppendExtended appends a request with an extended header to b.
func AppendExtended(b []byte, flags, typ uint16, cookie, off, n uint64, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 0x21e41c71)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	b = binary.BigEndian.AppendUint64(b, n)
	return append(b, payload...)
}

// Send sends a request; if headers are extended, it says whether there is a payload. It
// fails with the connection's error.
func (c *Client) Send(flags, typ uint16, cookie, off uint64, n uint32, payload []byte) error {
	if !c.Extended {
		_, err := c.Write(AppendRequest(nil, flags, typ, cookie, off, n, payload))
		return err
	}
	if payload != nil {
		flags |= 1 << 5
	}
	return c.SendExtended(flags, typ, cookie, off, uint64(n), payload)
}

// SendExtended sends a request with an extended header. It fails with the connection's
// error.
func (c *Client) SendExtended(flags, typ uint16, cookie, off, n uint64, payload []byte) error {
	_, err := c.Write(AppendExtended(nil, flags, typ, cookie, off, n, payload))
	return err
}

// Receive receives a simple reply or one chunk. readLen returns how many bytes of data
// follow a successful simple reply with a cookie (0: none). It fails with the
// connection's error, and at what is no reply; an error of the server's is in
// Reply.Error.
func (c *Client) Receive(readLen func(cookie uint64) int) (*Reply, error) {
	var h [32]byte
	if _, err := io.ReadFull(c, h[:16]); err != nil {
		return nil, err
	}
	switch magic := binary.BigEndian.Uint32(h[:]); magic {
	case 0x67446698:
		r := &Reply{Error: binary.BigEndian.Uint32(h[4:]), Cookie: binary.BigEndian.Uint64(h[8:])}
		if n := readLen(r.Cookie); r.Error == 0 && n > 0 {
			r.Data = make([]byte, n)
			_, err := io.ReadFull(c, r.Data)
			return r, err
		}
		return r, nil
	case 0x668e33ef, 0x6e8a278c:
		rest, length := h[16:20], func() uint64 { return uint64(binary.BigEndian.Uint32(h[16:])) }
		if (magic == 0x6e8a278c) != c.Extended {
			return nil, fmt.Errorf("reply magic %#x, extended headers: %v", magic, c.Extended)
		}
		if c.Extended {
			rest, length = h[16:], func() uint64 { return binary.BigEndian.Uint64(h[24:]) }
		}
		if _, err := io.ReadFull(c, rest); err != nil {
			return nil, err
		}
		r := &Reply{
			Structured: true, Flags: binary.BigEndian.Uint16(h[4:]), Type: binary.BigEndian.Uint16(h[6:]),
			Cookie: binary.BigEndian.Uint64(h[8:]),
		}
		if n := length(); n > 64<<20 {
			return nil, fmt.Errorf("a reply of %d bytes", n)
		}
		p := make([]byte, length())
		if _, err := io.ReadFull(c, p); err != nil {
			return nil, err
		}
		return r, r.parse(p)
	default:
		return nil, fmt.Errorf("reply magic %#x", magic)
	}
}

func (r *Reply) parse(p []byte) error {
	switch {
	case r.Type == 0 && len(p) == 0:
		return nil
	case r.Type == 1 && len(p) > 8:
		r.Offset, r.Data = binary.BigEndian.Uint64(p), p[8:]
		return nil
	case r.Type == 2 && len(p) == 12 && binary.BigEndian.Uint32(p[8:]) <= 64<<20:
		r.Offset, r.Data = binary.BigEndian.Uint64(p), make([]byte, binary.BigEndian.Uint32(p[8:]))
		return nil
	case r.Type == 5 && len(p) >= 12 && len(p)%8 == 4:
		r.Context = binary.BigEndian.Uint32(p)
		for p = p[4:]; len(p) > 0; p = p[8:] {
			r.Extents = append(r.Extents, Extent{uint64(binary.BigEndian.Uint32(p)), uint64(binary.BigEndian.Uint32(p[4:]))})
		}
		return nil
	case r.Type == 6 && len(p) >= 24 && len(p) == 8+16*int(binary.BigEndian.Uint32(p[4:])):
		r.Context = binary.BigEndian.Uint32(p)
		for p = p[8:]; len(p) > 0; p = p[16:] {
			r.Extents = append(r.Extents, Extent{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:])})
		}
		return nil
	case r.Type == 1<<15+1 && len(p) >= 6 && len(p) == 6+int(binary.BigEndian.Uint16(p[4:])):
		r.Error, r.Message = binary.BigEndian.Uint32(p), string(p[6:])
		return nil
	}
	return fmt.Errorf("chunk of type %#x with %d bytes", r.Type, len(p))
}

// Do sends a request and receives its reply; nothing else may be under way. It fails as
// Receive does, and at the reply to another request.
func (c *Client) Do(flags, typ uint16, off uint64, n uint32, payload []byte) (*Reply, error) {
	const cookie = 0x1122334455667788
	if err := c.Send(flags, typ, cookie, off, n, payload); err != nil {
		return nil, err
	}
	r, err := c.Receive(func(uint64) int {
		if typ == 0 {
			return int(n)
		}
		return 0
	})
	if err == nil && r.Cookie != cookie {
		err = fmt.Errorf("cookie %#x", r.Cookie)
	}
	return r, err
}
