package initiator_test

import (
	"errors"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/iscsi/tcp"
)

// strict lets in who authenticates itself.
type strict struct{ chap.Credentials }

func (s *strict) Admit(*iscsi.Login) (a iscsi.Admission, redirect string, st iscsi.LoginStatus) {
	a.Find = func(name string) *chap.Credentials {
		if name == s.Name {
			return &s.Credentials
		}
		return nil
	}
	return a, "", iscsi.LoginOK
}

func (s *strict) Establish(*iscsi.Login) (uint16, iscsi.LoginStatus) { return 1, iscsi.LoginOK }

// letIn is the target's part of a login by the policy.
func letIn(c *tcp.Conn, p iscsi.Policy) error {
	values := iscsi.DefaultValues()
	l := iscsi.NewLogin(p, &values, 1)
	for done := false; !done; {
		h, data, err := c.ReadPDU()
		if err != nil {
			return err
		}
		var r iscsi.LoginResponse
		var text []byte
		r, text, done, err = l.Request(&h, data)
		r.Put(&h)
		if err := errors.Join(err, c.WritePDU(&h, text)); err != nil {
			return err
		}
	}
	return nil
}

// portal is the other end of a connection: a login by the policy, then the answers of a test.
func portal(t *testing.T, p iscsi.Policy, answers ...string) net.Conn {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go func() {
		c := tcp.NewConn(b)
		if letIn(c, p) != nil {
			return
		}
		for i, text := range answers {
			h, _, err := c.ReadPDU()
			if err != nil {
				return
			}
			r := iscsi.Text{ITT: h.ITT(), TTT: uint32(i)}
			if i == len(answers)-1 {
				r.Final, r.TTT = true, iscsi.NoTag
			}
			r.PutResponse(&h)
			if c.WritePDU(&h, []byte(text)) != nil {
				return
			}
		}
		c.ReadPDU() // the logout
	}()
	return a
}

func TestBothAuthenticateEachOther(t *testing.T) {
	secret, own := []byte("secret of the initiator"), []byte("secret of the target")
	p := &strict{chap.Credentials{Name: "alice", Secret: secret, OwnName: "disks", OwnSecret: own}}
	for name, tc := range map[string]struct {
		c    *chap.Credentials
		want error
	}{
		"one way":               {&chap.Credentials{Name: "alice", Secret: secret}, nil},
		"both ways":             {&chap.Credentials{Name: "alice", Secret: secret, OwnSecret: own}, nil},
		"wrong secret":          {&chap.Credentials{Name: "alice", Secret: own}, initiator.ErrRefused},
		"nobody":                {nil, initiator.ErrRefused},
		"a portal with another": {&chap.Credentials{Name: "alice", Secret: secret, OwnSecret: []byte("secret of another one")}, initiator.ErrTarget},
	} {
		nc := portal(t, p, "TargetName=iqn.x:1\x00TargetAddress=192.0.2.1:3260,1\x00TargetAddress=[2001:db8::1]:32", "60,2\x00TargetName=iqn.x:2\x00")
		all, err := initiator.Targets(t.Context(), nc, initiator.Config{Initiator: "iqn.x:i", CHAP: tc.c})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if tc.want == nil && (len(all) != 2 || all[0].Portals[1] != "[2001:db8::1]:3260,2" || all[1].Name != "iqn.x:2") {
			t.Errorf("%s: %q", name, all)
		}
	}
}

func TestAnswersOfAHostilePortalAreRefused(t *testing.T) {
	for _, answers := range [][]string{{"TargetAddress=192.0.2.1:3260,1\x00"}, {"TargetName=no name\x00"}, {"X=1\x00"}, make([]string, 100)} {
		nc := portal(t, &open{}, answers...)
		if all, err := initiator.Targets(t.Context(), nc, initiator.Config{Initiator: "iqn.x:i"}); !errors.Is(err, initiator.ErrProtocol) {
			t.Errorf("%.20q: %q, %v", answers, all, err)
		}
	}
}

type open struct{ strict }

func (*open) Admit(*iscsi.Login) (a iscsi.Admission, redirect string, st iscsi.LoginStatus) {
	return a, "", iscsi.LoginOK
}
