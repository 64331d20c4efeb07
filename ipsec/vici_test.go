package ipsec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

func TestProbeDaemonSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	good := newFakeCharon(t)
	old := newFakeCharon(t)
	old.Version = "5.8.4"
	odd := newFakeCharon(t)
	odd.Version = "dunno"
	dead := newFakeCharon(t)
	dead.Stop()
	bare := newFakeCharon(t)
	bare.Plugins = []string{"charon", "openssl", "kernel-netlink", "vici"}
	noESP := newFakeCharon(t)
	noESP.Plugins = []string{"charon", "openssl", "kernel-pfroute", "socket-default", "vici"}
	noCrypto := newFakeCharon(t)
	noCrypto.Plugins = []string{"charon", "kernel-netlink", "socket-default", "vici"}
	hung := newFakeCharon(t)
	hung.Hang["version"] = true
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge")
	ln, err := net.Listen("unix", huge)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write(binary.BigEndian.AppendUint32(nil, 1<<31))
		_, _ = c.Read(make([]byte, 1000))
		_, _ = c.Read(make([]byte, 1000))
	}()
	defer func() { ln.Close(); <-served }()

	for _, tc := range []struct {
		name, socket string
		kind         error
		words        string
	}{
		{"no socket", filepath.Join(dir, "none"), charon.ErrNotRunning, "systemctl start strongswan"},
		{"nobody listens", dead.Socket, charon.ErrRefused, "systemctl restart strongswan"},
		{"no answer", hung.Socket, charon.ErrHangs, "no answer"},
		{"too old", old.Socket, charon.ErrTooOld, "5.9 or later"},
		{"odd version", odd.Socket, charon.ErrTooOld, "dunno"},
		{"no plugin for IKE's packets", bare.Socket, negotiation.ErrPluginMissing, "load socket-default"},
		{"no plugin for ESP", noESP.Socket, negotiation.ErrPluginMissing, "else kernel-libipsec"},
		{"no plugin for ciphers", noCrypto.Socket, negotiation.ErrPluginMissing, "does AES"},
		{"a length of 2 GiB", huge, charon.ErrProtocol, "2147483648 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			probe := func(limit time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := ike.Probe(ctx, tc.socket)
				return err
			}
			var err error
			if tc.socket != hung.Socket {
				err = probe(time.Minute)
			} else {
				for limit := 300 * time.Millisecond; hung.Count("version") == 0; limit *= 2 { // a busy machine may need more to ask
					err = probe(limit)
				}
			}
			var de *charon.Error
			if !errors.Is(err, tc.kind) || !errors.As(err, &de) || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("error %v, want %v with %q", err, tc.kind, tc.words)
			}
		})
	}
	st, err := ike.Probe(t.Context(), "unix://"+good.Socket)
	if err != nil || !st.Connected || st.Version != "5.9.8" || st.DataPlane != esp.Userland {
		t.Errorf("a good daemon: %+v, %v", st, err)
	}
	good.Set(func() { good.Plugins = []string{"openssl", "kernel-netlink", "socket-default"} })
	if st, err := ike.Probe(t.Context(), good.Socket); err != nil || st.DataPlane != esp.Kernel {
		t.Errorf("without kernel-libipsec: %+v, %v", st, err)
	}
}

func TestProbeDaemonWithoutPermission(t *testing.T) {
	f := newFakeCharon(t)
	if err := os.Chmod(f.Socket, 0); err != nil {
		t.Fatal(err)
	}
	if err := otheruser.AsNobody(func() error {
		_, err := ike.Probe(t.Context(), f.Socket)
		if !errors.Is(err, charon.ErrPermission) || !strings.Contains(err.Error(), "root") {
			t.Errorf("error %v", err)
		}
		return nil
	}); err != nil {
		t.Skip("cannot become another user here: ", err)
	}
}

func TestListOf500SAsIsCompleteEveryTime(t *testing.T) {
	f := newFakeCharon(t)
	for i := range 500 {
		p := padtest.Peer(fmt.Sprintf("peer%d", i), 1)
		f.SAs = append(f.SAs, saOf(p, p.Name+"-out", p.Name+"-in"))
	}
	l, err := ike.Connect(t.Context(), f.Socket, esp.Auto, ike.CallTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 20 {
		sas, err := l.List(t.Context(), "")
		if err != nil || len(sas) != 500 {
			t.Fatalf("%d SAs of 500, %v", len(sas), err)
		}
		for i, sa := range sas {
			if sa.Peer != fmt.Sprintf("peer%d", i) || len(sa.Children) != 2 {
				t.Fatalf("SA %d is %s with %d children", i, sa.Peer, len(sa.Children))
			}
		}
	}
}

func TestEventBeforeTheConfirmationDoesNotBlockASubscription(t *testing.T) {
	f := newFakeCharon(t)
	f.Early = "ike-updown"
	c, err := charon.Dial(t.Context(), f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.Subscribe(ctx, ike.Watched...); err != nil {
		t.Fatal(err)
	}
	for range len(ike.Watched) {
		select {
		case ev := <-c.Events:
			if ev.Name != "ike-updown" {
				t.Errorf("event %s", ev.Name)
			}
		case <-ctx.Done():
			t.Fatal("an event was lost")
		}
	}
}

func TestSubscriptionEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, "mute"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := charon.Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Subscribe(ctx, "list-sa"); !errors.Is(err, charon.ErrHangs) {
		t.Errorf("error %v, want %v", err, charon.ErrHangs)
	}
}
