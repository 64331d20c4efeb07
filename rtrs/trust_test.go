package rtrs

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Under each model sessions work, also on paths that have come up again, and have a
// protection domain for each connection unless the model shares.
func TestSessionsUnderEachTrustModel(t *testing.T) {
	for _, model := range verbs.TrustModels() {
		t.Run(model.String(), func(t *testing.T) {
			m := newMemory(1 << 17)
			srv := startServer(t, ServerConfig{NewSession: m.session, Trust: model})
			cfg := clientConfig(newHost(t), srv.addr, "a")
			cfg.Conns, cfg.Trust = 3, model
			cl := connect(t, cfg)
			exercise(t, cl, m)
			want := int64(3)
			if model == verbs.SLT || model == verbs.ST {
				want = 1
			}
			for _, u := range []*verbs.ULP{srv.ulp, cfg.ULP} {
				if n := u.Usage().PDs; n != want {
					t.Errorf("%d protection domains for 3 connections, want %d", n, want)
				}
			}
			for _, qp := range srv.dev.QPs() {
				if !model.Permits(qp.PD().Trust()) {
					t.Errorf("a stream of the server's is %v", qp.PD().Trust())
				}
				qp.Abort(errors.New("lost"))
			}
			eventually(t, "the path is up again", func() bool { i := cl.Info(); return i.Reconnects > 0 && i.State == Connected })
			exercise(t, cl, m)
		})
	}
}

func TestMoreConnectionsThanPermits(t *testing.T) {
	m := newMemory(1 << 17)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cfg := clientConfig(newHost(t), srv.addr, "a")
	cfg.Conns, cfg.QueueDepth = 5, 1
	exercise(t, connect(t, cfg), m)
}

// A chunk is for requests on its connection (RFC 5042 section 6.1.1): on another one
// its STag opens nothing, and a request in it is no request, unless the model shares.
func TestChunkOnAnotherConnection(t *testing.T) {
	for _, c := range []struct {
		model verbs.TrustModel
		act   string
		ok    bool
	}{{verbs.NSNT, "write", false}, {verbs.NSNT, "announce", false}, {verbs.SNT, "write", false}, {verbs.SLT, "write", true}} {
		t.Run(c.model.String()+" "+c.act, func(t *testing.T) {
			m := newMemory(4096)
			ended := make(chan error, 1)
			srv := startServer(t, ServerConfig{Trust: c.model, NewSession: func(SessionInfo) (ServerHandler, error) {
				return &spy{memory: m, ended: ended}, nil
			}})
			h := newHost(t)
			req := pathReq(1)
			req.CIDNum = 2
			first, err := rawDial(t, h, srv.addr, req)
			if err != nil {
				t.Fatal(err)
			}
			req.CID = 1
			second, err := rawDial(t, h, srv.addr, req)
			if err != nil {
				t.Fatal(err)
			}
			first.open()
			if c.act == "announce" {
				first.imm(reqImm(1, 12, first.bits))
			} else {
				first.request(1, []byte("data"))
			}
			if c.ok {
				if _, errno, _ := splitRsp(first.next(verbs.WCRecvImm).Imm); errno != 0 || string(m.data[:4]) != "data" {
					t.Errorf("%v, the server has %q", errno, m.data[:4])
				}
				return
			}
			first.gone()
			second.gone()
			if err := <-ended; errors.Is(err, ErrPeerClosed) {
				t.Errorf("the session ended because of %v", err)
			}
			if m.writes != 0 {
				t.Error("the request was carried out")
			}
		})
	}
}

func TestTrustClientsTakesAModelThatTrustsThem(t *testing.T) {
	h := newHost(t)
	m := newMemory(1)
	for _, model := range verbs.TrustModels() {
		srv, err := NewServer(ServerConfig{ULP: h.ulp, NewSession: m.session, TrustClients: true, Trust: model})
		if want := model == verbs.NSRT || model == verbs.ST; (err == nil) != want {
			t.Errorf("%v: %v", model, err)
		}
		if err == nil {
			srv.Close()
		} else if !strings.Contains(err.Error(), "NS-RT and S-T do") {
			t.Errorf("%v does not say what would do", err)
		}
	}
}

// The model of a session is found out when it is opened; where that does not trust
// the peer, the chunks are revoked all the same.
func TestTrustOfIsAskedForEachSession(t *testing.T) {
	m := newMemory(4096)
	models := []verbs.TrustModel{verbs.ST, verbs.NSNT}
	var got []verbs.TrustModel
	srv := startServer(t, ServerConfig{TrustClients: true,
		TrustOf: func(id transport.Identity) (model verbs.TrustModel) {
			if id == "" {
				t.Error("asked of nobody")
			}
			model, models = models[0], models[1:]
			return model
		},
		NewSession: func(i SessionInfo) (ServerHandler, error) { got = append(got, i.Trust); return m, nil }})
	h := newHost(t)
	for i, fresh := range []bool{false, true} {
		p, err := rawDial(t, h, srv.addr, pathReq(byte(i)))
		if err != nil {
			t.Fatal(err)
		}
		p.open()
		p.request(0, []byte("data"))
		_, errno, stag := splitRsp(p.next(verbs.WCRecvImm).Imm)
		if errno != 0 || (stag != 0) != fresh || (p.rsp.Flags&flagNewRKey != 0) != fresh {
			t.Errorf("%v, new STag %#x, flags %#x; fresh STags %v", errno, stag, p.rsp.Flags, fresh)
		}
		p.qp.Close()
		<-m.closed
	}
	if want := []verbs.TrustModel{verbs.ST, verbs.NSNT}; !slices.Equal(got, want) {
		t.Errorf("sessions are %v, want %v", got, want)
	}
}
