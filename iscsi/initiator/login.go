package initiator

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
)

const (
	// maxRounds is how many requests a login, or a discovery, takes at most: a login with CHAP takes four, and
	// each answer of text brings some dozens of targets.
	maxRounds = 64

	// maxData is how many bytes of data a PDU of a login may have.
	maxData = iscsi.LoginDataSegment
)

// Errors of Targets and Login.
var (
	ErrRefused  = errors.New("initiator: the portal refuses the login")
	ErrProtocol = errors.New("initiator: the portal's answer was not understood")
	ErrTarget   = errors.New("initiator: the portal does not know the target's secret")
)

// Config says who logs in, and where.
type Config struct {
	Initiator string // an iSCSI name
	// CHAP authenticates the initiator by Name and Secret, where the portal asks for it, and the portal
	// by OwnSecret if there is one; nil: neither.
	CHAP *chap.Credentials

	// Of Login, not of Targets.
	Target string // its iSCSI name
	LUN    uint16 // below 16384
}

func newLogin(nc net.Conn, cfg Config) *login {
	s := &login{nc: nc, cfg: cfg}
	rand.Read(s.isid[3:])
	s.isid[0] = 0x80 // random (RFC 7143 section 11.12.5)
	return s
}

// login is a connection during its login, and for requests one after the other.
type login struct {
	nc               net.Conn
	cfg              Config
	isid             [6]byte
	cmdSN, expStatSN uint32
	itt              uint32
	rounds           int
}

func (s *login) send(data []byte, put func(h *iscsi.BHS)) error {
	if s.rounds++; s.rounds > maxRounds {
		return fmt.Errorf("it takes more than %d requests: %w", maxRounds, ErrProtocol)
	}
	var h iscsi.BHS
	put(&h)
	h.SetLengths(0, len(data))
	_, err := s.nc.Write(append(append(h[:], data...), make([]byte, iscsi.Pad(len(data)))...))
	return err
}

func (s *login) receive() (h iscsi.BHS, data []byte, err error) {
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
func (s *login) step(stage iscsi.Stage, transit bool, pairs ...string) (said map[string]string, moved bool, err error) {
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

// run logs in: with names in the first request, and with keys in the operational stage. It returns what the target says to
// those.
func (s *login) run(names, keys []string) (said map[string]string, err error) {
	method := "None"
	if s.cfg.CHAP != nil {
		method = "CHAP,None"
	}
	said, moved, err := s.step(iscsi.Security, s.cfg.CHAP == nil, append(append([]string{"InitiatorName", s.cfg.Initiator}, names...), "AuthMethod", method)...)
	if err != nil {
		return nil, err
	}
	switch {
	case said["AuthMethod"] == "CHAP" && s.cfg.CHAP != nil:
		moved, err = s.authenticate()
	case s.cfg.CHAP != nil && len(s.cfg.CHAP.OwnSecret) > 0:
		return nil, fmt.Errorf("%w: it does not want CHAP", ErrTarget)
	case !moved:
		_, moved, err = s.step(iscsi.Security, true)
	}
	if err == nil && moved {
		said, moved, err = s.negotiate(append([]string{"HeaderDigest", "None", "DataDigest", "None"}, keys...))
	}
	if err == nil && !moved {
		err = fmt.Errorf("the login does not end: %w", ErrProtocol)
	}
	return said, err
}

// negotiate is the operational stage, with keys and their values by turns. A target may begin a negotiation, too (RFC 7143
// section 6.2): what it proposes is taken, and of a list None, if that is in it.
func (s *login) negotiate(pairs []string) (said map[string]string, moved bool, err error) {
	said = map[string]string{}
	offered := map[string]bool{}
	for !moved && err == nil { // step bounds the rounds
		for i := 0; i < len(pairs); i += 2 {
			offered[pairs[i]] = true
		}
		var part map[string]string
		if part, moved, err = s.step(iscsi.Operational, true, pairs...); err != nil {
			break
		}
		pairs = nil
		for key, value := range part {
			said[key] = value
			id, known := iscsi.KeyNamed(key)
			if r := iscsi.Keys[id].Result; !known || offered[key] || r == iscsi.Declared || r == iscsi.Obsolete {
				continue
			}
			all := strings.Split(value, ",")
			if value = all[0]; slices.Contains(all, "None") {
				value = "None"
			}
			pairs = append(pairs, key, value)
		}
	}
	return said, moved, err
}

// authenticate is CHAP, as its peer (RFC 7143 section 12.1.3).
func (s *login) authenticate() (moved bool, err error) {
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
