package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/metrics"
	"github.com/ironwarp/ironwarp/internal/otheruser"
)

func TestUserWhoGoesAwayLeavesNothing(t *testing.T) {
	h := silentPeer(t)
	for i := range 16 { // more than may be under way
		ctx, cancel := context.WithCancel(t.Context())
		_, err := h.as(alice).Attach(ctx, api.AttachRequest{Peer: "silent", Export: fmt.Sprint("x", i), TimeoutSeconds: 600}, func(api.Event) { cancel() })
		if err == nil {
			t.Fatal("attached what nobody has")
		}
	}
	eventually(t, "no connection, disk or stream is left", func() bool {
		g := h.d.local.Find("alice").Gate
		conns, requests, _ := g.Use()
		r := h.d.local.Find("alice").Disks.Usage()
		return conns == 0 && requests == 0 && len(h.status().Attachments) == 0 && r.Streams == 0 && r.PDs == 0
	})
}

func TestUsersCannotFillTheLog(t *testing.T) {
	alpha, _ := twoUsers(t)
	at := attachAs(t, alpha.as(alice), "a")
	before := strings.Count(alpha.log.String(), "\n")
	for range 200 {
		c, err := otheruser.Dial(at.Socket, alice)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("no NBD at all, and more than a client's flags")) // too many are cut off
		c.Close()
		if c, err = otheruser.Dial(filepath.Join(alpha.dir, "run", "ironwarp.sock"), carol); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("\x00\x01 / HTTP/0.0\r\n\r\n")) // it may be closed already
		c.Close()
	}
	eventually(t, "all of that is over", func() bool {
		conns, _, _ := alpha.d.local.UnknownUsers.Use()
		return conns == 0 && alpha.status().Attachments[0].Clients == 0
	})
	text := strings.Split(alpha.log.String(), "\n")[before:]
	if info := slices.DeleteFunc(text, func(l string) bool { return strings.Contains(l, "level=DEBUG") || l == "" }); len(info) > 20 {
		t.Errorf("%d lines:\n%s", len(info), strings.Join(info, "\n"))
	}
}

func TestMetricsTellTheDisksOfULPsApart(t *testing.T) {
	alpha, _ := twoUsers(t)
	attachAs(t, alpha.as(alice), "shared")
	attachAs(t, alpha.as(bob), "shared")
	reg := prometheus.NewRegistry()
	reg.MustRegister(metrics.Collector(t.Context(), alpha.d))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ironwarp_attachment_ready" && len(f.GetMetric()) != 2 {
			t.Errorf("%v", f)
		}
	}
}
