// Package discover asks an iSCSI portal for its targets: it logs in to a discovery session, sends
// SendTargets, and logs out (RFC 7143 appendix C). It is no initiator for anything else.
package discover

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
)

const (
	// maxRounds is how many requests a discovery takes at most: a login with CHAP takes four, and
	// each answer of text brings some dozens of targets.
	maxRounds = 64

	// maxData is how many bytes of data one PDU may have: what is declared.
	maxData = 8 << 10

	// maxTargets bounds what is remembered of a portal.
	maxTargets = 4096
)

// Errors of Targets.
var (
	ErrRefused  = errors.New("discover: the portal refuses the login")
	ErrProtocol = errors.New("discover: the portal's answer was not understood")
	ErrTarget   = errors.New("discover: the portal does not know the target's secret")
)

// Config says who asks.
type Config struct {
	Initiator string // an iSCSI name
	// CHAP authenticates the initiator by Name and Secret, where the portal asks for it, and the portal
	// by OwnSecret if there is one; nil: neither.
	CHAP *chap.Credentials
}

// Target is a target, and where it is served: as host:port,group.
type Target struct {
	Name    string
	Portals []string
}

// Targets asks the portal at the other end of a connection. It fails with ErrRefused, ErrProtocol,
// ErrTarget, and with the network's error. The connection is of no use afterwards.
func Targets(ctx context.Context, nc net.Conn, cfg Config) ([]Target, error) {
	defer context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })()
	s := &session{nc: nc, cfg: cfg}
	rand.Read(s.isid[3:])
	s.isid[0] = 0x80 // random (RFC 7143 section 11.12.5)
	if err := s.login(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	all, err := s.sendTargets()
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	// Whether it is heard of or not, the session is over.
	_ = s.send(nil, func(h *iscsi.BHS) {
		q := iscsi.Logout{Immediate: true, Reason: iscsi.CloseSession, ITT: s.itt, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
		q.Put(h)
	})
	return all, nil
}

type session struct {
	nc               net.Conn
	cfg              Config
	isid             [6]byte
	cmdSN, expStatSN uint32
	itt              uint32
	rounds           int
}

func (s *session) send(data []byte, put func(h *iscsi.BHS)) error {
	if s.rounds++; s.rounds > maxRounds {
		return fmt.Errorf("it takes more than %d requests: %w", maxRounds, ErrProtocol)
	}
	var h iscsi.BHS
	put(&h)
	h.SetLengths(0, len(data))
	_, err := s.nc.Write(append(append(h[:], data...), make([]byte, iscsi.Pad(len(data)))...))
	return err
}

func (s *session) receive() (h iscsi.BHS, data []byte, err error) {
	if _, err = io.ReadFull(s.nc, h[:]); err != nil {
		return h, nil, err
	}
	if h.AHSLen() != 0 || h.DataLen() > maxData {
		return h, nil, fmt.Errorf("%v of %d bytes: %w", h.Opcode(), h.DataLen(), ErrProtocol)
	}
	data = make([]byte, h.DataLen()+iscsi.Pad(h.DataLen()))
	_, err = io.ReadFull(s.nc, data)
	return h, data[:h.DataLen()], err
}

// step is one request of a login and its response. It returns the keys of the response.
func (s *session) step(stage iscsi.Stage, transit bool, pairs ...string) (said map[string]string, moved bool, err error) {
	var text []byte
	for i := 0; i < len(pairs); i += 2 {
		text = iscsi.AppendPair(text, pairs[i], pairs[i+1])
	}
	said = map[string]string{}
	for {
		next := iscsi.Operational
		if stage == iscsi.Operational {
			next = iscsi.FullFeature
		}
		if err := s.send(text, func(h *iscsi.BHS) {
			q := iscsi.LoginRequest{Transit: transit, CSG: stage, NSG: next, ISID: s.isid, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			q.Put(h)
		}); err != nil {
			return nil, false, err
		}
		h, data, err := s.receive()
		if err != nil {
			return nil, false, err
		}
		r, err := iscsi.ParseLoginResponse(&h)
		switch {
		case h.Opcode() != iscsi.OpLoginResp || err != nil:
			return nil, false, fmt.Errorf("%v to a login: %w", h.Opcode(), ErrProtocol)
		case r.Status != iscsi.LoginOK:
			return nil, false, fmt.Errorf("%w: %s", ErrRefused, status(r.Status))
		}
		s.expStatSN = r.StatSN + 1
		all, err := iscsi.ParsePairs(data)
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		for _, p := range all {
			said[p.Key] = p.Value
		}
		if !r.Continue {
			return said, r.Transit && r.NSG == next, nil
		}
		text = nil
	}
}

func status(s iscsi.LoginStatus) string {
	switch s {
	case iscsi.LoginAuthFailure:
		return "authentication failed"
	case iscsi.LoginForbidden:
		return "this initiator may not log in"
	case iscsi.LoginUnavailable, iscsi.LoginNoResources:
		return "not now"
	case iscsi.LoginMovedTemporarily, iscsi.LoginMovedPermanently:
		return "it sends to another portal"
	}
	return fmt.Sprintf("status %#04x", uint16(s))
}

func (s *session) login() error {
	method := "None"
	if s.cfg.CHAP != nil {
		method = "CHAP,None"
	}
	said, moved, err := s.step(iscsi.Security, s.cfg.CHAP == nil, "InitiatorName", s.cfg.Initiator, "SessionType", "Discovery", "AuthMethod", method)
	if err != nil {
		return err
	}
	switch {
	case said["AuthMethod"] == "CHAP" && s.cfg.CHAP != nil:
		moved, err = s.authenticate()
	case s.cfg.CHAP != nil && len(s.cfg.CHAP.OwnSecret) > 0:
		return fmt.Errorf("%w: it does not want CHAP", ErrTarget)
	case !moved:
		_, moved, err = s.step(iscsi.Security, true)
	}
	if err == nil && moved {
		_, moved, err = s.step(iscsi.Operational, true, "HeaderDigest", "None", "DataDigest", "None", "MaxRecvDataSegmentLength", strconv.Itoa(maxData))
	}
	if err == nil && !moved {
		err = fmt.Errorf("the login does not end: %w", ErrProtocol)
	}
	return err
}

// authenticate is CHAP, as its peer (RFC 7143 section 12.1.3).
func (s *session) authenticate() (moved bool, err error) {
	c := s.cfg.CHAP
	said, _, err := s.step(iscsi.Security, false, "CHAP_A", fmt.Sprintf("%d,%d", chap.SHA256, chap.MD5))
	if err != nil {
		return false, err
	}
	a, aerr := strconv.ParseUint(said["CHAP_A"], 10, 8)
	id, ierr := strconv.ParseUint(said["CHAP_I"], 0, 8)
	challenge, cerr := iscsi.ParseBinary(said["CHAP_C"])
	if err := errors.Join(aerr, ierr, cerr); err != nil || chap.Algorithm(a) != chap.MD5 && chap.Algorithm(a) != chap.SHA256 || len(challenge) == 0 || len(challenge) > chap.MaxBinary {
		return false, fmt.Errorf("a challenge that is none: %w", ErrProtocol)
	}
	answer := []string{"CHAP_N", c.Name, "CHAP_R", iscsi.FormatBinary(chap.Response(chap.Algorithm(a), uint8(id), c.Secret, challenge))}
	own := make([]byte, 32)
	if len(c.OwnSecret) > 0 {
		rand.Read(own)
		answer = append(answer, "CHAP_I", "1", "CHAP_C", iscsi.FormatBinary(own))
	}
	said, moved, err = s.step(iscsi.Security, true, answer...)
	if err != nil || len(c.OwnSecret) == 0 {
		return moved, err
	}
	got, err := iscsi.ParseBinary(said["CHAP_R"])
	if err != nil || subtle.ConstantTimeCompare(got, chap.Response(chap.Algorithm(a), 1, c.OwnSecret, own)) != 1 {
		return false, ErrTarget
	}
	return moved, nil
}

func (s *session) sendTargets() (all []Target, err error) {
	s.itt = 1
	q := iscsi.Text{Final: true, ITT: s.itt, TTT: iscsi.NoTag}
	for text, data := iscsi.AppendPair(nil, "SendTargets", "All"), []byte(nil); ; text = nil {
		q.CmdSN, q.ExpStatSN = s.cmdSN, s.expStatSN
		if err := s.send(text, q.PutRequest); err != nil {
			return nil, err
		}
		s.cmdSN++
		h, part, err := s.receive()
		if err != nil {
			return nil, err
		}
		r, err := iscsi.ParseTextResponse(&h)
		if h.Opcode() != iscsi.OpTextResp || err != nil {
			return nil, fmt.Errorf("%v to SendTargets: %w", h.Opcode(), ErrProtocol)
		}
		s.expStatSN = r.StatSN + 1
		// A part may end within a pair.
		data = append(data, part...)
		end := len(data)
		if !r.Final {
			end = strings.LastIndexByte(string(data), 0) + 1
		}
		for pair := range strings.SplitSeq(string(data[:end]), "\x00") {
			key, value, _ := strings.Cut(pair, "=")
			switch {
			case pair == "":
			case key == "TargetName" && len(all) < maxTargets && iscsi.IsName(value):
				all = append(all, Target{Name: value})
			case key == "TargetAddress" && len(all) > 0:
				all[len(all)-1].Portals = append(all[len(all)-1].Portals, value)
			default:
				return nil, fmt.Errorf("%.40q in the list of targets: %w", pair, ErrProtocol)
			}
		}
		data = append(data[:0], data[end:]...)
		if r.Final {
			return all, nil
		}
		q.TTT = r.TTT
	}
}
