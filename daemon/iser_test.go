package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// rdmaInitiator is an initiator that is not connected.
func rdmaInitiator(t *testing.T) *isertest.Initiator {
	t.Helper()
	i, err := isertest.New(isertest.Options{IRD: 8, Invalidates: true, Receives: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i
}

// inRDMA logs in to LUNs at a port of this host in RDMA mode; or, by way of TCP, goes on in that.
func inRDMA(t *testing.T, port uint16, stream bool, keys ...string) (*isertest.Session, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	t.Cleanup(cancel)
	i, at := rdmaInitiator(t), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	if stream {
		return i.LoginStream(ctx, at, keys...)
	}
	return i.Login(ctx, at, keys...)
}

// mustInRDMA is inRDMA once the target is there. The unit attention of LUN 0 is taken.
func mustInRDMA(t *testing.T, port uint16, stream bool, name string) *isertest.Session {
	t.Helper()
	var s *isertest.Session
	var err error
	eventually(t, "the initiator is logged in over iSER", func() bool {
		s, err = inRDMA(t, port, stream, "InitiatorName="+name, "TargetName="+diskIQN)
		return err == nil
	})
	if _, err := s.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestInitiatorsUseADiskOverISER in both start-ups, at the port that others use over TCP.
func TestInitiatorsUseADiskOverISER(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	path := beta.image("other.img", 4<<20)
	port := beta.disks(api.LUNSpec{Path: path})
	overTCP := mustLogin(t, port, "iqn.x:i")
	for n, how := range []string{"RDMA mode", "streaming mode"} {
		t.Run(how, func(t *testing.T) {
			s := mustInRDMA(t, port, n == 1, "iqn.x:r")
			block := bytes.Repeat([]byte{byte(n + 1)}, 256<<10)
			lba := byte(n * 2) // of 65,536 blocks... in the second byte from the left
			write, read := []byte{scsi.Write10, 0, 0, 0, lba << 1, 0, 0, 2, 0}, []byte{scsi.Read10, 0, 0, 0, lba << 1, 0, 0, 2, 0}
			if st, err := s.Do(t.Context(), 0, write, block, nil); err != nil || st != scsi.Good {
				t.Fatalf("%v, %v", st, err)
			}
			in := make([]byte, len(block))
			if st, err := s.Do(t.Context(), 0, read, nil, in); err != nil || st != scsi.Good || !bytes.Equal(in, block) {
				t.Fatalf("%v, %v", st, err)
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, block) {
				t.Errorf("the file has not what was written: %v", err)
			}
			if st := overTCP.write(0, make([]byte, 512)); st != scsi.Good {
				t.Errorf("over TCP, beside it: %v", st)
			}
			st := beta.status()
			over := map[string]api.TargetSession{}
			for _, x := range st.TargetSessions {
				over[x.Transport] = x
			}
			x := over["iser"]
			if len(over) != 2 || over["tcp"].Initiator != "iqn.x:i" || x.Initiator != "iqn.x:r" || x.Peer != "alpha" || x.IO.WriteBytes != 256<<10 || x.IO.ReadBytes != 256<<10 || x.HeaderDigest {
				t.Errorf("%+v", st.TargetSessions)
			}
			if len(st.Streams) != 1 || st.Streams[0].Service != config.ServiceTargets || st.Streams[0].Peer != "alpha" || st.Streams[0].Trust != verbs.NSNT.String() {
				t.Errorf("%+v", st.Streams)
			}
			if !strings.Contains(beta.log.String(), "initiator=iqn.x:r target="+diskIQN) || !strings.Contains(beta.log.String(), "transport=iser") {
				t.Error("the log has no login over iSER")
			}
			if _, err := beta.api.EndTargetSession(t.Context(), x.ID); err != nil {
				t.Fatal(err)
			}
			if st, err := s.Do(t.Context(), 0, write, block, nil); err == nil {
				t.Errorf("a session that was ended goes on: %v", st)
			}
			eventually(t, "nothing is left of it", func() bool {
				return len(beta.status().Streams) == 0 && beta.used(t, config.ServiceTargets) == 0
			})
		})
	}
}

// used is the registered memory of a service.
func (h *host) used(t *testing.T, service string) int64 {
	t.Helper()
	return h.uses(t, service, "memory")
}

// uses is what a service or ULP has of a resource.
func (h *host) uses(t *testing.T, service, resource string) int64 {
	t.Helper()
	r, err := h.api.Resources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.ULPs {
		for _, x := range u.Uses {
			if u.Name == service && x.Name == resource {
				return x.Used
			}
		}
	}
	t.Fatalf("no service %s", service)
	return 0
}

// TestTargetThatIsNotServedOverISER is not found nor logged in to in RDMA mode, and answers who asks for it
// by way of TCP that there is none; a reload ends the sessions that are there, and no others.
func TestTargetThatIsNotServedOverISER(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	found := func() bool {
		t.Helper()
		s, err := inRDMA(t, port, false, "InitiatorName=iqn.x:r", "SessionType=Discovery")
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.SendTargets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 2 && all[0].Value == diskIQN && all[1].Value == fmt.Sprintf("127.0.0.1:%d,1", port)
	}
	overTCP, overISER := mustLogin(t, port, "iqn.x:i"), mustInRDMA(t, port, false, "iqn.x:r")
	if !found() {
		t.Error("discovery in RDMA mode does not find it")
	}
	declare := func(more string) {
		t.Helper()
		beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, peers: [alpha], luns: [{number: 0, path: other.img}]%s}", diskIQN, port, more))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	declare(", iser: false")
	if v := beta.target(); v.ISER == nil || *v.ISER {
		t.Errorf("%+v", v)
	}
	if st, err := overISER.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil); err == nil {
		t.Errorf("its session goes on: %v", st)
	}
	if st := overTCP.write(0, make([]byte, 512)); st != scsi.Good {
		t.Errorf("the session over TCP: %v", st)
	}
	if found() {
		t.Error("discovery in RDMA mode finds it")
	}
	var refused *isertest.RefusedError
	if _, err := inRDMA(t, port, false, "InitiatorName=iqn.x:r", "TargetName="+diskIQN); !errors.As(err, &refused) || refused.Status != iscsi.LoginForbidden {
		t.Errorf("%v", err)
	}
	if _, err := inRDMA(t, port, true, "InitiatorName=iqn.x:r", "TargetName="+diskIQN); err == nil || !strings.Contains(err.Error(), "RDMAExtensions No") {
		t.Errorf("%v", err)
	}
	declare("")
	mustInRDMA(t, port, true, "iqn.x:r")
}

// TestWhoMayLogInOverISER: the same as over TCP, by the peer and by the initiator's name.
func TestWhoMayLogInOverISER(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	s := mustInRDMA(t, port, false, "iqn.x:r")
	declare := func(more string) {
		t.Helper()
		beta.write("targets.d/disks.yaml", fmt.Sprintf("{name: disks, iqn: \"%s\", port: %d, luns: [{number: 0, path: other.img}], %s}", diskIQN, port, more))
		if _, err := beta.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	refusedAs := func(why iscsi.LoginStatus, stream bool) {
		t.Helper()
		var refused *isertest.RefusedError
		if _, err := inRDMA(t, port, stream, "InitiatorName=iqn.x:r", "TargetName="+diskIQN); !errors.As(err, &refused) || refused.Status != why {
			t.Errorf("%v, want status %#x", err, why)
		}
	}
	declare("peers: [alpha], initiators: [\"iqn.x:other\"]")
	if st, err := s.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil); err == nil {
		t.Errorf("who is shut out goes on: %v", st)
	}
	refusedAs(iscsi.LoginForbidden, false)
	refusedAs(iscsi.LoginForbidden, true)
	beta.write("secrets/i.chap", "secret-of-the-initiator\n")
	declare("peers: [alpha], chap: [{user: alice, secret_file: secrets/i.chap}]")
	refusedAs(iscsi.LoginAuthFailure, false)
	refusedAs(iscsi.LoginAuthFailure, true)
	declare("peers: [alpha]")
	s = mustInRDMA(t, port, false, "iqn.x:r")
	declare("insecure_undeclared: true")
	if st, err := s.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil); err == nil {
		t.Errorf("a peer that is allowed no more goes on: %v", st)
	}
	if _, err := beta.api.RemovePeer(t.Context(), "alpha", true); err != nil {
		t.Fatal(err)
	}
	mustInRDMA(t, port, false, "iqn.x:r")
	if s := beta.onlySession(); s.Peer != "" || s.Identity != "" || s.Transport != "iser" {
		t.Errorf("%+v", s)
	}
}

// TestSessionsOverISERAreTheirPeers: its limits hold for them, and for connections that have not logged in.
func TestSessionsOverISERAreTheirPeers(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "limits: {per_peer: {streams: 2, half_open: 3}}\n")
	link(t, alpha, beta)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	mustInRDMA(t, port, false, "iqn.x:a")
	mustInRDMA(t, port, true, "iqn.x:b")
	keys := []string{"InitiatorName=iqn.x:more", "TargetName=" + diskIQN}
	var rejected *verbs.RejectedError
	if _, err := inRDMA(t, port, false, keys...); !errors.As(err, &rejected) {
		t.Errorf("a third stream: %v", err)
	}
	if n := len(beta.status().TargetSessions); n != 2 {
		t.Errorf("%d sessions", n)
	}
	eventually(t, "the third has been answered", func() bool { return beta.d.dev.Usage().HalfOpen == 0 })
	for range 3 {
		nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	eventually(t, "three connections are in their start-up", func() bool { return beta.d.dev.Usage().HalfOpen == 3 })
	if _, st := login(t, port, "iqn.x:i"); st != iscsi.LoginUnavailable {
		t.Errorf("a fourth connection: %#x", st)
	}
	eventually(t, "the log says whose limit it was", func() bool {
		return strings.Contains(beta.log.String(), "half-open streams for peer")
	})
}

// TestFloodOfConnectionsToAPortalIsBlocked, whatever they begin with.
func TestFloodOfConnectionsToAPortalIsBlocked(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "block: {per_second: 1, burst: 20, for: 1h}\n")
	link(t, alpha, beta)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 1<<20)})
	s := mustInRDMA(t, port, false, "iqn.x:r")
	eventually(t, "the peer is blocked", func() bool {
		login(t, port, "iqn.x:i")
		return len(beta.status().Blocks) == 1
	})
	eventually(t, "the session of a blocked peer ends", func() bool { // the block is there before its streams are ended
		_, err := s.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil)
		return err != nil
	})
	if _, err := inRDMA(t, port, false, "InitiatorName=iqn.x:i", "TargetName="+diskIQN); err == nil {
		t.Error("a blocked peer logs in")
	}
}
