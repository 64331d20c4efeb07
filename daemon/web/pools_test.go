package web

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// rows are the rows of the body of a section's table, each with the texts of its cells.
func rows(t *testing.T, v view, id string) (all [][]string) {
	t.Helper()
	parts, err := newPages().sections(v)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(parts, func(p section) bool { return p.ID == id })
	doc, err := html.Parse(strings.NewReader(string(parts[i].HTML)))
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode || n.Data != "tr" || n.Parent.Data != "tbody" {
			continue
		}
		var cells []string
		for cell := range n.ChildNodes() {
			var text strings.Builder
			for in := range cell.Descendants() {
				switch {
				case in.Type == html.TextNode:
					text.WriteString(in.Data)
				case in.Data == "br":
					text.WriteString(" ")
				case in.Data == "rect" && in.Attr[0].Key == "class" && in.Attr[0].Val == "done":
					text.WriteString("bar " + in.Attr[1].Val)
				}
			}
			if cell.Type == html.ElementNode {
				cells = append(cells, strings.TrimSpace(text.String()))
			}
		}
		all = append(all, cells)
	}
	return all
}

// The page shows how full each pool is, whether that is too full, and what an export's I/O is limited to.
func TestPoolsAndLimitsAreOnThePage(t *testing.T) {
	const g = 1 << 30
	at := time.Unix(1000, 0)
	var r record
	r.look(at, api.Status{
		Pools: []api.Pool{
			{Name: "fast", Driver: "file", Where: "/srv/volumes", Size: 100 * g, Used: 40 * g, Free: 50 * g, Volumes: 3, Quota: 1024, Manage: []string{"alpha", "gamma"}},
			{Name: "thin", Driver: "lvmthin", Where: "vg0/pool0", Size: 10 * g, Used: 9 * g, Free: g, Volumes: 7, Quota: 10, Alarm: 90},
			{Name: "stuffed", Driver: "file", Where: "/srv/full", Size: g, Used: g, Volumes: 1, Quota: 2, Alarm: 95},
			{Name: "gone", Driver: "file", Where: "/srv/gone", Problem: &api.Error{Message: "/srv/gone is another directory", Fix: "mount it"}},
			{Name: "new", Driver: "file", Where: "/srv/new", Quota: 9},
		},
		Exports: []api.Export{
			{ExportSpec: api.ExportSpec{Name: "vol", QoS: api.QoS{IOPS: 2000, WriteBandwidth: 100 << 20}}, State: api.ExportReady},
			{ExportSpec: api.ExportSpec{Name: "docs", QoS: api.QoS{ReadIOPS: 1, WriteIOPS: 2, Bandwidth: 1536, ReadBandwidth: 1024}}, State: api.ExportReady},
			{ExportSpec: api.ExportSpec{Name: "free"}, State: api.ExportReady},
		},
	}, nil)
	v := r.view("alpha", at)

	want := [][]string{
		{"fast", "ok", "100 GiB", "40 GiB bar 30", "50 GiB", "3 of 1024", "alpha, gamma", "file /srv/volumes"},
		{"thin", "over 90 % full", "10 GiB", "9 GiB bar 54", "1 GiB", "7 of 10", "this host", "lvmthin vg0/pool0"},
		{"stuffed", "full", "1 GiB", "1 GiB bar 60", "0 B", "1 of 2", "this host", "file /srv/full"},
		{"gone", "problem", "-", "-", "-", "0 of 0", "this host", "file /srv/gone"},
		{"new", "not looked at yet", "-", "-", "-", "0 of 9", "this host", "file /srv/new"},
	}
	got := rows(t, v, "pools")
	if len(got) != len(want) {
		t.Fatalf("the pools' table has %q", got)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("a pool is %q, want %q", got[i], want[i])
		}
	}

	var names []string
	for _, row := range rows(t, v, "exports") {
		names = append(names, row[0])
	}
	if want := []string{"vol at most 2000 IOPS, write 100 MiB/s", "docs at most 1 reads/s, 2 writes/s, 1.5 KiB/s, read 1 KiB/s", "free"}; !slices.Equal(names, want) {
		t.Errorf("the exports are %q, want %q", names, want)
	}

	if i := slices.IndexFunc(v.Tiles(), func(x tile) bool { return x.Label == "pools with room" }); i < 0 || v.Tiles()[i] != (tile{"pools with room", "1 of 4", "bad"}) {
		t.Errorf("the numbers at the top are %v", v.Tiles())
	}
	var troubles []string
	for _, x := range v.Troubles() {
		troubles = append(troubles, x.What+": "+x.Message)
		if x.Fix == "" {
			t.Errorf("%s: it does not say what to do", x.What)
		}
	}
	if want := []string{
		"pool thin: it is over 90 % full: when it has no room left, writes to its volumes fail",
		"pool stuffed: it is full: when it has no room left, writes to its volumes fail",
		"pool gone: /srv/gone is another directory",
	}; !slices.Equal(troubles, want) {
		t.Errorf("what needs attention is %q, want %q", troubles, want)
	}
}

// However full a pool says that it is, its bar stays within its width.
func TestBarsStayWithinTheirWidth(t *testing.T) {
	for _, p := range []api.Pool{{Size: 10, Free: -5}, {Size: 10, Free: 50}, {Size: 1, Used: 1 << 62, Free: 1 << 62}, {Size: 1 << 62, Free: 1}, {Size: -1, Free: 3}, {}} {
		if n := fullness(p); n < -1 || n > 100 {
			t.Errorf("%+v is full to %d percent", p, n)
		}
	}
}
