package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestPingAndBenchOverLoopback(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	for _, mode := range []string{"", api.PingRead, api.PingSend} {
		var replies []int
		res, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Mode: mode, Count: 3, IntervalSeconds: 0.01}, func(ev api.Event) {
			if ev.Reply != nil {
				replies = append(replies, ev.Reply.Seq)
			}
		})
		if err != nil || res.Received != 3 || res.Sent != 3 || res.Min <= 0 || res.Min > res.P50 || res.P50 > res.P99 || res.P99 > res.Max {
			t.Errorf("%q: %+v, %v", mode, res, err)
		}
		if fmt.Sprint(replies) != "[1 2 3]" || res.Identity != "loopback:127.0.0.1" || res.Protection != "loopback" || len(res.Stream) != 16 {
			t.Errorf("%q: %v %+v", mode, replies, res)
		}
	}
	rows := 0
	res, err := alpha.api.Bench(t.Context(), api.BenchRequest{Peer: "beta", Seconds: 0.01}, func(ev api.Event) {
		if ev.Row != nil {
			rows++
		}
	})
	if err != nil || len(res.Rows) != len(probe.Rows()) || rows != len(res.Rows) {
		t.Fatalf("%d rows, %d reported, %v", len(res.Rows), rows, err)
	}
	if slices.ContainsFunc(res.Rows, func(r api.BenchRow) bool { return r.Operations == 0 || r.BytesPerSec <= 0 }) {
		t.Errorf("%+v", res.Rows)
	}
}

func TestPingOfWhatCannotBeReached(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	ping := func(req api.PingRequest) error {
		_, err := alpha.api.Ping(t.Context(), req, nil)
		return err
	}
	says(t, ping(api.PingRequest{Peer: "gamma"}), api.CodeNotFound, `unknown peer "gamma"`, "beta")
	says(t, ping(api.PingRequest{Peer: "beta", Mode: "x"}), api.CodeInvalid, `unknown mode "x"`)
	says(t, ping(api.PingRequest{Peer: "beta", Size: -1}), api.CodeInvalid, "size -1 is out of range")
	says(t, ping(api.PingRequest{Peer: "beta", TimeoutSeconds: 1e9}), api.CodeInvalid, "out of range")
	if _, err := beta.api.RemovePeer(t.Context(), "alpha", false); err != nil {
		t.Fatal(err)
	}
	says(t, ping(api.PingRequest{Peer: "beta"}), api.CodeUnavailable, "connection refused")
	beta.stop()
	says(t, ping(api.PingRequest{Peer: "beta"}), api.CodeUnavailable, "connection refused", "is the peer's daemon running")
}

// TestStrangersAreTurnedAwayAndEverythingElseKeepsRunning covers what arrives
// at the link's port from anybody.
func TestStrangersAreTurnedAwayAndEverythingElseKeepsRunning(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	before := beta.status().Refused
	at := fmt.Sprintf("127.0.0.1:%d", beta.port)

	// Garbage from a peer's address.
	junk, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer junk.Close()
	if _, err := junk.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 64))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "garbage is refused", func() bool { return beta.status().Refused > before })

	// One that connects and says nothing holds up nobody.
	silent, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ok(t, c, cmdRead, 0, 512, nil)

	// The status has the last one that was refused, which may be one of those above by the time that it is looked at: such as these come
	// until it has one.
	refused := func(what, words string, comes func()) {
		t.Helper()
		before := beta.status().Refused
		eventually(t, what, func() bool {
			comes()
			st := beta.status()
			return st.Refused > before && strings.Contains(st.LastRefused, words)
		})
	}
	stranger := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}}
	refused("the stranger is counted", "127.0.0.77 is not the address of a configured peer", func() {
		s, err := stranger.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if n, err := s.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("a stranger was answered: %d, %v", n, err)
		}
	})
	refused("a stream for a service that there is not is counted", "names no service", func() {
		if _, _, err := dialRaw(t, beta.port, []byte("nonsense")); err == nil {
			t.Error("private data of no service was accepted")
		}
	})

	ok(t, c, cmdRead, 0, 512, nil)
	if _, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Error(err)
	}
}

// dialRaw opens a stream with private data of its own.
func dialRaw(t *testing.T, port uint16, private []byte) (*verbs.Device, *verbs.QP, error) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	u, err := dev.NewULP("raw", verbs.ULPConfig{Trust: verbs.SLT})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := u.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := u.CreateCQ(64, nil)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.Dial(t.Context(), verbs.DialConfig{
		QP:        verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, ORD: 4},
		Remote:    netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
		Transport: &transport.Config{Protector: transport.LoopbackOnly()}, PrivateData: private,
	})
	return dev, qp, err
}

func TestSTagOutOfThinAirEndsThatStreamOnly(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	_, qp, err := dialRaw(t, beta.port, []byte("IWpg\x01\x00\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	mr, err := qp.PD().RegisterMR(make([]byte, 64), verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := qp.PostSend(&verbs.SendWR{Op: verbs.OpRead, RemoteSTag: 0xdeadbeef, SGL: []verbs.SGE{{MR: mr, Len: 64}}}); err != nil {
		t.Fatal(err)
	}
	<-qp.Done()
	if qp.Err() == nil {
		t.Error("the stream ended without an error")
	}
	eventually(t, "the fault is logged", func() bool { return strings.Contains(beta.log.String(), "peer fault") })
	ok(t, c, cmdRead, 0, 512, nil)
}

func TestPortInUseIsNamedAndTriedAgain(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", beta.port))
	if err != nil {
		t.Fatal(err)
	}
	link(t, alpha, beta)
	ls := beta.status().Listeners
	if len(ls) != 1 || ls[0].Problem == nil {
		t.Fatalf("%+v", ls)
	}
	says(t, ls[0].Problem, api.CodeInUse, fmt.Sprintf("another program has TCP port %d", beta.port), "ss -ltnp", "listen port")
	l.Close()
	eventually(t, "it listens", func() bool { return beta.status().Listeners[0].State == "listening" })
	if _, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Error(err)
	}
}

func TestReloadTouchesNoRunningStream(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	before := alpha.streamIDs()
	alpha.write("peers.d/gamma.yaml", "name: gamma\naddress: 127.0.0.3\nprotection: loopback\n")
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.1\nport: %d\nprotection: loopback\nconnections: 4\nfpdu: emss\n", beta.port))
	r, err := alpha.api.Reload(t.Context())
	if err != nil || fmt.Sprint(r.Changed) != "[peer beta changed peer gamma added]" || len(r.Restart) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if after := alpha.streamIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("streams were %v and are %v", before, after)
	}
	ok(t, c, cmdRead, 0, 512, nil)
	main, err := os.ReadFile(alpha.conf)
	if err != nil {
		t.Fatal(err)
	}
	alpha.write("ironwarp.yaml", string(main)+"log: {level: debug}\nlimits: {streams: 700, queue_size: 7}\n")
	r, err = alpha.api.Reload(t.Context())
	if err != nil || fmt.Sprint(r.Restart) != "[log limits: queue_size]" || fmt.Sprint(r.Changed) != "[limits changed]" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFaultyConfigurationIsNotReloaded(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	alpha.write("peers.d/beta.yaml", "name: beta\nadress: 127.0.0.1\n")
	_, err := alpha.api.Reload(t.Context())
	says(t, err, api.CodeInvalid, `beta.yaml:2:1: unknown key "adress"`, `did you mean "address"`)
	alpha.d.ReloadAndLog(context.Background())
	if !strings.Contains(alpha.log.String(), "goes on with the old one") {
		t.Error("the signal's reload did not log its failure")
	}
	ok(t, c, cmdRead, 0, 512, nil)
	_ = beta
}

func TestPeerThatMovesKeepsItsDisks(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	alpha.attach("disk")
	beta.stop()
	old := beta.port
	beta.port = iwarptest.FreePort(t)
	beta.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d}\nstate_dir: state\nruntime_dir: run\n", beta.port))
	beta.start()
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.1\nport: %d\nprotection: loopback\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk is ready at the new port", func() bool {
		at := alpha.status().Attachments
		return len(at) == 1 && at[0].State == api.AttachReady
	})
	for _, s := range alpha.status().Streams {
		if strings.HasSuffix(s.Flow, fmt.Sprintf(":%d", old)) {
			t.Errorf("a stream to the old port: %+v", s)
		}
	}
	ok(t, alpha.nbd("disk"), cmdRead, 0, 512, nil)
}

func TestSpecsReadBack(t *testing.T) {
	for _, s := range []api.PeerSpec{
		{
			Name: "a", Address: "192.0.2.1", Port: 5, Transport: "auto", UDPPort: 9000, Auth: "psk", PSKFile: "/x", Protection: "ipsec", CRC: "off", FPDU: "emss", Connections: 3,
			LocalAddress: "192.0.2.2", RemoteID: "b", LocalID: "c", Profile: "p", Mode: "transport", Gateway: "192.0.2.3", ChildSAs: 4, IdleReap: "1h30m",
		},
		{
			Name: "a", Address: "192.0.2.1", Transport: "sctp-udp", Auth: "cert", CertFile: "/c", KeyFile: "/k", CAFiles: []string{"/a", "/b"}, CRLURIs: []string{"file:///l"},
			OCSPURIs: []string{"http://192.0.2.9/"}, Revocation: "strict", Protection: "ipsec", CRC: "on", FPDU: "large", Connections: 2, ChildSAs: 1,
		},
		{
			Name: "a", Address: "::1", LocalAddress: "::1", Transport: "sctp", Multihoming: []api.Pair{{Address: "127.0.0.2", LocalAddress: "127.0.0.1"}},
			Protection: "loopback", CRC: "on", FPDU: "large", Connections: 2,
		},
		{Name: "a", Address: "::1", Transport: "tcp", Protection: "loopback", CRC: "on", FPDU: "large", Connections: 2},
		{Name: "a", Address: "192.0.2.1", Transport: "tcp", InsecurePlaintext: true, CRC: "on", FPDU: "large", Connections: 2},
	} {
		p, err := peerOf(s)
		if err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if got := specOf(p); !reflect.DeepEqual(got, s) {
			t.Errorf("\n got %+v\nwant %+v", got, s)
		}
	}
}

// TestStaleSocketOfStrongSwanIsExplained has the socket's file, as a killed
// strongSwan leaves it, and nobody who listens.
func TestStaleSocketOfStrongSwanIsExplained(t *testing.T) {
	h := newHost(t, "")
	socket := filepath.Join(h.dir, "charon.vici")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := h.d.sas.Manager(t.Context(), config.IPsec{VICI: "unix://" + socket, DataPlane: "auto"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the status says what is wrong", func() bool {
		ike := h.status().IKE
		return ike != nil && ike.Problem != nil && strings.Contains(ike.Problem.Message, "refuses connections")
	})
	says(t, h.status().IKE.Problem, api.CodeUnavailable, socket, "systemctl restart strongswan", "ironwarp doctor", "keeps trying")
	other := newHost(t, "")
	link(t, h, other)
	if _, err := h.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Errorf("a peer that needs no strongSwan: %v", err)
	}
}

// TestFirstPeerWaitsForStrongSwan: who adds the first peer, and uses it at once, finds
// that strongSwan knows it, however long strongSwan takes to answer.
func TestFirstPeerWaitsForStrongSwan(t *testing.T) {
	h := newHost(t, "")
	socket := filepath.Join(t.TempDir(), "vici")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	returned := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := h.d.sas.Manager(t.Context(), config.IPsec{VICI: "unix://" + socket, DataPlane: "auto"})
		returned <- err
	}()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-returned:
		if waited := time.Since(began); waited < sas.FirstTry {
			t.Errorf("the peer is added after %v, before strongSwan has answered: %v", waited, err)
		}
		returned <- err
	default:
	}
	ln.Close()
	c.Close()
	if err := <-returned; err != nil {
		t.Error(err)
	}
}
