package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// captured is a capture that a test reads.
type captured struct {
	h    *host
	id   uint64
	body io.ReadCloser
	file chan []byte
}

// capture begins a capture; what is read of it is kept if read is set.
func (h *host) capture(ctx context.Context, q api.CaptureRequest, read bool) *captured {
	h.t.Helper()
	id, body, err := h.api.Capture(ctx, q)
	if err != nil {
		h.t.Fatal(err)
	}
	c := &captured{h: h, id: id, body: body, file: make(chan []byte, 1)}
	h.t.Cleanup(func() { body.Close() })
	if read {
		c.read()
	}
	return c
}

func (c *captured) read() {
	go func() {
		b, _ := io.ReadAll(c.body)
		c.file <- b
	}()
}

// end ends the capture, and returns its file and what the daemon says of it.
func (c *captured) end() ([]byte, api.Capture) {
	c.h.t.Helper()
	v, err := c.h.api.EndCapture(c.h.t.Context(), c.id)
	if err != nil {
		c.h.t.Fatal(err)
	}
	return <-c.file, v
}

// secret is content of a disk of which any 8 bytes are recognised.
func secret(n int) []byte { return bytes.Repeat([]byte("qZjXkVwH"), n/8) }

// shows reports whether a capture has 8 bytes of secret.
func shows(file []byte) bool {
	for i := range 8 {
		if bytes.Contains(file, secret(16)[i:i+8]) {
			return true
		}
	}
	return false
}

// writeSecret writes secret to a disk, and reads it back.
func writeSecret(t *testing.T, disk *nbdtest.Client, times int) {
	t.Helper()
	data := secret(64 << 10)
	for range times {
		ok(t, disk, cmdWrite, 0, uint32(len(data)), data)
		if got := ok(t, disk, cmdRead, 0, uint32(len(data)), nil); !bytes.Equal(got, data) {
			t.Fatal("the disk has other data than was written")
		}
	}
}

// Headers are captured, and content only if that is asked for; whoever captures changes nothing for others, and nothing is left
// when captures end.
func TestCaptureHasContentIfAskedFor(t *testing.T) {
	for _, kind := range []string{"tcp", "sctp-udp"} {
		t.Run(kind, func(t *testing.T) {
			alpha, _ := pairOver(t, kind, kind)
			disk := alpha.attach("disk")
			cut := alpha.capture(t.Context(), api.CaptureRequest{Peer: "beta"}, true)
			whole := alpha.capture(t.Context(), api.CaptureRequest{Payload: true}, true)
			if !alpha.d.dev.Tap().On() || len(alpha.status().Captures) != 2 {
				t.Errorf("captures that run: %+v", alpha.status().Captures)
			}
			writeSecret(t, disk, 4)
			file, v := cut.end()
			if v.Captured < 12 || v.Dropped != 0 {
				t.Errorf("of a disk's I/O was captured: %+v", v)
			}
			if shows(file) {
				t.Error("a capture without payload has what is on the disk")
			}
			if !alpha.d.dev.Tap().On() {
				t.Error("the other capture has ended as well")
			}
			writeSecret(t, disk, 1)
			file, v = whole.end()
			if dir := os.Getenv("IRONWARP_KEEP_CAPTURES"); dir != "" {
				os.WriteFile(dir+"/disk-"+kind+".pcapng", file, 0o600)
			}
			if n := bytes.Count(file, secret(1024)); n < 5*2*(64-2) || v.Dropped != 0 {
				t.Errorf("a capture with payload has %d KiB of what was written and read 5 times; %+v", n, v)
			}
			if alpha.d.dev.Tap().On() || len(alpha.status().Captures) != 0 {
				t.Errorf("captures are over, and there are: %+v", alpha.status().Captures)
			}
			writeSecret(t, disk, 1)
		})
	}
}

// A capture that nobody reads loses what it has no room for, and says how much; the disk does not notice.
func TestSlowCaptureDropsAndSaysSo(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	disk := alpha.attach("disk")
	c := alpha.capture(t.Context(), api.CaptureRequest{Payload: true}, false)
	dropped := func() uint64 { return alpha.status().Captures[0].Dropped }
	for dropped() == 0 {
		writeSecret(t, disk, 32)
	}
	c.read()
	eventually(t, "what was in the ring is read", func() bool {
		before := dropped()
		writeSecret(t, disk, 1)
		return dropped() == before
	})
	file, v := c.end()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = r.ReadPacketData()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	i, err := r.Interface(0)
	if err != nil || i.Statistics.PacketsDropped != v.Dropped || v.Dropped == 0 {
		t.Errorf("the file says that %d were dropped, the daemon %+v (%v)", i.Statistics.PacketsDropped, v, err)
	}
}

// A capture ends with whoever reads it.
func TestCaptureEndsWithItsReader(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	disk := alpha.attach("disk")
	for _, idle := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		alpha.capture(ctx, api.CaptureRequest{Payload: true}, false)
		if !idle {
			writeSecret(t, disk, 40)
		}
		cancel()
		eventually(t, "the capture has ended", func() bool { return !alpha.d.dev.Tap().On() && len(alpha.status().Captures) == 0 })
	}
}

// Whoever looks at a host sees that it is captured, and the log has it.
func TestCaptureIsSeen(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	c := alpha.capture(t.Context(), api.CaptureRequest{Peer: "beta", Payload: true}, true)
	st := alpha.status().Captures
	if len(st) != 1 || st[0].Peer != "beta" || !st[0].Payload || st[0].PID != os.Getpid() {
		t.Errorf("status says %+v", st)
	}
	weak := func() bool {
		a, err := alpha.api.Audit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r4 := a.Requirements[slices.IndexFunc(a.Requirements, func(r api.Requirement) bool { return r.ID == "R4" })]
		return slices.ContainsFunc(r4.Weak, func(w api.Weakness) bool { return strings.HasPrefix(w.Setting, "capture ") })
	}
	if !weak() {
		t.Error("the audit does not have the capture")
	}
	c.end()
	if weak() {
		t.Error("the audit has a capture that is over")
	}
	const more = 7
	for range more {
		alpha.capture(t.Context(), api.CaptureRequest{Peer: "beta"}, true).end()
	}
	for _, want := range []string{"capture has begun", "capture has ended"} {
		eventually(t, "the log has each capture: "+want, func() bool { return strings.Count(alpha.log.String(), want) == 1+more })
	}
}

func TestWrongCapturesAreRefused(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	_, _, err := alpha.api.Capture(t.Context(), api.CaptureRequest{Peer: "nobody"})
	says(t, err, api.CodeNotFound, "nobody")
	_, err = alpha.api.EndCapture(t.Context(), 17)
	says(t, err, api.CodeNotFound, "17")
	for range 4 {
		alpha.capture(t.Context(), api.CaptureRequest{}, true)
	}
	_, _, err = alpha.api.Capture(t.Context(), api.CaptureRequest{})
	says(t, err, api.CodeInUse, "4 captures")
}
