package isertest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// RefusedError is a login that the target refuses.
type RefusedError struct{ Status iscsi.LoginStatus }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("isertest: the login was refused with status %#x", e.Status)
}

// Session is a session of requests one after the other.
type Session struct {
	i      *Initiator
	itt    uint32
	cmdSN  uint32
	statSN uint32
	// Keys are the target's answer to the login.
	Keys []iscsi.Pair
}

// Login connects in RDMA mode and logs in with keys, KEY=VALUE each, one of which is InitiatorName. It
// fails with a *RefusedError, as Dial does, and when the connection ends.
func (i *Initiator) Login(ctx context.Context, to netip.AddrPort, keys ...string) (*Session, error) {
	if err := i.Dial(ctx, to); err != nil {
		return nil, err
	}
	return i.login(keys, func(h *iscsi.BHS, data []byte) error { return i.Send(iser.Header{}, h, data) }, func() (h iscsi.BHS, data []byte, err error) {
		m, _, err := i.Receive(ctx)
		return m.BHS, m.Data, err
	})
}

// LoginStream logs in over TCP, with RDMAExtensions=Yes, and goes on in RDMA mode (RFC 7145 section 5.1). It
// fails with a *RefusedError, as DialStream and StartMPA do, and if the target has another opinion about
// RDMAExtensions.
func (i *Initiator) LoginStream(ctx context.Context, to netip.AddrPort, keys ...string) (*Session, error) {
	c, err := i.DialStream(ctx, to)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	s, err := i.login(append(keys, "RDMAExtensions=Yes"), func(h *iscsi.BHS, data []byte) error {
		h.SetLengths(0, len(data))
		_, err := c.Write(append(append(h[:], data...), make([]byte, iscsi.Pad(len(data)))...))
		return err
	}, func() (h iscsi.BHS, data []byte, err error) {
		if _, err := io.ReadFull(c, h[:]); err != nil {
			return h, nil, err
		}
		n := h.DataLen()
		data = make([]byte, n+iscsi.Pad(n))
		_, err = io.ReadFull(c, data)
		return h, data[:n], err
	})
	if err == nil && s.Key("RDMAExtensions") != "Yes" {
		err = fmt.Errorf("isertest: the target answers %v", s.Keys)
	}
	if err == nil {
		err = i.StartMPA(ctx, c)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

func (i *Initiator) login(keys []string, send func(h *iscsi.BHS, data []byte) error, receive func() (iscsi.BHS, []byte, error)) (*Session, error) {
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 1}, CmdSN: 1}
	var h iscsi.BHS
	q.Put(&h)
	var text []byte
	for _, k := range keys {
		text = append(append(text, k...), 0)
	}
	if err := send(&h, text); err != nil {
		return nil, err
	}
	h, data, err := receive()
	if err != nil {
		return nil, err
	}
	r, err := iscsi.ParseLoginResponse(&h)
	switch {
	case err != nil:
		return nil, err
	case r.Status != iscsi.LoginOK:
		return nil, &RefusedError{r.Status}
	case !r.Transit:
		return nil, errors.New("isertest: the target has more to say during login")
	}
	s := &Session{i: i, cmdSN: 1, statSN: r.StatSN + 1}
	s.Keys, err = iscsi.ParsePairs(data)
	return s, err
}

// Key is the target's answer to a key of the login, "" if it has not said any.
func (s *Session) Key(name string) string {
	for _, p := range s.Keys {
		if p.Key == name {
			return p.Value
		}
	}
	return ""
}

// Do carries a command out on a LUN: with out as data for the unit, or with in for what comes from it. It
// answers pings meanwhile, and returns the status. It fails when the connection ends, and with ctx's error.
func (s *Session) Do(ctx context.Context, lun byte, cdb, out, in []byte) (scsi.Status, error) {
	s.itt++
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.statSN, Read: len(in) > 0, Write: len(out) > 0, EDTL: uint32(len(in) + len(out)), LUN: [8]byte{0, lun}}
	copy(k.CDB[:], cdb)
	s.cmdSN++
	var head iser.Header
	if n := len(in) + len(out); n > 0 {
		access, memory := verbs.RemoteRead, out
		if len(in) > 0 {
			access, memory = verbs.LocalWrite|verbs.RemoteWrite, in
		}
		mr, err := s.i.Memory(memory, access)
		if err != nil {
			return 0, err
		}
		defer mr.Deregister()
		head.Read, head.Write = len(in) > 0, len(out) > 0
		head.ReadTag, head.WriteTag = mr.STag(), mr.STag()
	}
	return s.carryOut(ctx, head, k, nil)
}

// DoImmediate carries out a command all of whose data, out, are in its message. It fails as Do does.
func (s *Session) DoImmediate(ctx context.Context, lun byte, cdb, out []byte) (scsi.Status, error) {
	s.itt++
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.statSN, Write: true, EDTL: uint32(len(out)), LUN: [8]byte{0, lun}}
	copy(k.CDB[:], cdb)
	s.cmdSN++
	return s.carryOut(ctx, iser.Header{}, k, out)
}

// carryOut sends a command, and waits for its response.
func (s *Session) carryOut(ctx context.Context, head iser.Header, k iscsi.Command, immediate []byte) (scsi.Status, error) {
	var h iscsi.BHS
	k.Put(&h)
	if err := s.i.Send(head, &h, immediate); err != nil {
		return 0, err
	}
	h, _, err := s.answer(ctx, iscsi.OpResponse)
	if err != nil {
		return 0, err
	}
	r, err := iscsi.ParseResponse(&h)
	if err == nil && r.ITT != k.ITT {
		err = fmt.Errorf("isertest: a response to %d in place of one to %d", r.ITT, k.ITT)
	}
	return scsi.Status(r.Status), err
}

// SendTargets asks for the targets. It fails as Do does.
func (s *Session) SendTargets(ctx context.Context) ([]iscsi.Pair, error) {
	s.itt++
	q := iscsi.Text{Final: true, ITT: s.itt, TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
	s.cmdSN++
	var h iscsi.BHS
	q.PutRequest(&h)
	if err := s.i.Send(iser.Header{}, &h, []byte("SendTargets=All\x00")); err != nil {
		return nil, err
	}
	_, data, err := s.answer(ctx, iscsi.OpTextResp)
	if err != nil {
		return nil, err
	}
	return iscsi.ParsePairs(data)
}

// answer waits for an answer, and handles what else comes: pings, and messages that are nobody's answer.
func (s *Session) answer(ctx context.Context, to iscsi.Opcode) (iscsi.BHS, []byte, error) {
	for {
		m, _, err := s.i.Receive(ctx)
		if err != nil {
			return m.BHS, nil, err
		}
		switch o := m.BHS.Opcode(); o {
		case to:
			s.statSN = binary.BigEndian.Uint32(m.BHS[24:]) + 1
			return m.BHS, m.Data, nil
		case iscsi.OpAsync:
			s.statSN = binary.BigEndian.Uint32(m.BHS[24:]) + 1
		case iscsi.OpNOPIn:
			n, err := iscsi.ParseNOPIn(&m.BHS)
			if err != nil {
				return m.BHS, nil, err
			}
			pong := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag, TTT: n.TTT, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
			var h iscsi.BHS
			pong.PutOut(&h)
			if err := s.i.Send(iser.Header{}, &h, nil); err != nil {
				return m.BHS, nil, err
			}
		default:
			return m.BHS, nil, fmt.Errorf("isertest: %v in place of %v", o, to)
		}
	}
}
