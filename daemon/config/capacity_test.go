package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// crowd is n peers, all of which may attach a disk.
func crowd(n int) string {
	var b, allow strings.Builder
	b.WriteString("peers:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: p%d, address: 127.0.%d.%d, protection: loopback}\n", i, 1+i/254, 1+i%254)
		fmt.Fprintf(&allow, "p%d,", i)
	}
	return b.String() + fmt.Sprintf("exports:\n  - {name: a, path: /x, allow: [%s]}\n", strings.TrimSuffix(allow.String(), ","))
}

// Unless the configuration says how much memory there is, there is enough for a session
// of each peer that may attach something.
func TestDefaultMemoryGrowsWithThePeersThatMayAttach(t *testing.T) {
	for _, tc := range []struct {
		main string
		want int64 // sessions of 128
	}{
		{"", 0},
		{"peers:\n  - {name: p, address: 127.0.0.2, protection: loopback}\n", 0},
		{crowd(1), 1}, {crowd(40), 40},
		{"trust: NS-NT\n" + crowd(3), 3},
	} {
		c, err := Load(write(t, t.TempDir(), "ironwarp.yaml", tc.main), true)
		if tc.main == "" {
			c, err = Load(t.TempDir()+"/none.yaml", false)
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := DefaultMemory + 2*tc.want*c.SessionMemory(); c.Limits.Device.Bytes != want {
			t.Errorf("memory is %d, want %d", c.Limits.Device.Bytes, want)
		}
	}
	c, err := Load(write(t, t.TempDir(), "ironwarp.yaml", "limits: {queue_size: 4}\n"+crowd(10)), true)
	if err != nil {
		t.Fatal(err)
	}
	if want := DefaultMemory + 20*c.SessionMemory(); c.Limits.Device.Bytes != want || c.SessionMemory() > 2<<20 {
		t.Errorf("memory is %d at a queue size of 4, want %d", c.Limits.Device.Bytes, want)
	}
	c.SetQueueSize(128)
	if want := DefaultMemory + 20*c.SessionMemory(); c.Limits.Device.Bytes != want {
		t.Errorf("memory is %d at a queue size of 128, want %d", c.Limits.Device.Bytes, want)
	}
}

// What the configuration says has to hold a session of each, and the fault says what
// would do.
func TestMemoryThatCannotHoldASessionOfEachPeerIsAFault(t *testing.T) {
	for _, tc := range []struct{ main, want string }{
		{"limits: {memory: 1GiB}\n" + crowd(18), ""},
		{"limits: {memory: 1GiB}\n" + crowd(19), "ironwarp.yaml:1:18: memory is 1GiB, of which 410MiB are kept for other services: a block session takes 33MiB at queue_size: 128, and 19 peers may attach exports; " +
			"each is to find room for one: set limits: {memory: 1038MiB} or more, or queue_size: to less"},
		{"limits: {memory: 1038MiB}\n" + crowd(19), ""},
		{"limits: {memory: 1GiB, queue_size: 64}\n" + crowd(19), ""},
		{"limits: {memory: 64MiB}\n" + crowd(1), ""},
		{"limits: {memory: 64MiB}\nulps: [{name: x, users: [1001], peers: [p0]}]\n" + crowd(1), ""},
		{"services: {exports: {limits: {memory: 64MiB}}}\n" + crowd(2), "service exports may have 64MiB of memory: a block session takes 33MiB at queue_size: 128, and 2 peers may attach exports; " +
			"each is to find room for one: set services: {exports: {limits: {memory: 66MiB}}} or more"},
		{"services: {exports: {limits: {memory: 66MiB}}}\n" + crowd(2), ""},
		{"limits: {queue_size: 512}\n", "queue_size is 512; allowed: 1 to 511"},
	} {
		_, err := Load(write(t, t.TempDir(), "ironwarp.yaml", tc.main), true)
		if got := fmt.Sprint(err); tc.want == "" && err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got  %v\nwant %s", tc.main[:strings.IndexByte(tc.main, '\n')], err, tc.want)
		}
	}
}

// Unless the configuration says otherwise, each peer's share holds a session, and what is not
// counted for each peer is enough for all streams.
func TestDefaultsGrowWithThePeers(t *testing.T) {
	for _, tc := range []struct {
		more  string
		peers int
	}{{"", 2}, {"", 255}, {"", 900}, {"queue_size: 511", 900}, {"streams: 30000", 2}, {"streams: 1000, queue_size: 511", 100}} {
		c, err := Load(write(t, t.TempDir(), "ironwarp.yaml", "limits: {"+tc.more+"}\n"+crowd(tc.peers)), true)
		if err != nil {
			t.Fatal(err)
		}
		entries := int64(rtrs.ConnEntries(c.Limits.QueueSize))
		share := func(limit int64) int64 { return limit / verbs.LimitFor(1, tc.peers) }
		if q := c.Limits.Device; share(q.Streams) < DefaultConnections || share(q.HalfOpen) < DefaultConnections || share(q.QueueEntries) < DefaultConnections*entries {
			t.Errorf("%q, %d peers: the share of each in %+v is less than a session", tc.more, tc.peers, q)
		}
		if pds, cqes := c.AvailableForExports("protection_domains"), c.AvailableForExports("cq_entries"); pds < c.Limits.Device.Streams || cqes < c.Limits.Device.Streams*entries {
			t.Errorf("%q, %d peers: exports can count on %d protection domains and %d completions, and there are %d streams", tc.more, tc.peers, pds, cqes, c.Limits.Device.Streams)
		}
	}
}

// A peer that may not have the streams of one session can never use a disk.
func TestFewerStreamsThanASessionHasIsAFault(t *testing.T) {
	for _, tc := range []struct{ main, want string }{
		{"limits: {streams: 1}\n" + crowd(1), "peer p0 may have 1 streams, and a block session with it has 2 connections"},
		{"limits: {per_peer: {streams: 1}}\n" + crowd(1), "peer p0 may have 1 streams"},
		{"peers: [{name: p, address: 127.0.0.2, protection: loopback, connections: 8, limits: {streams: 4}}]\n", "peer p may have 4 streams, and a block session with it has 8 connections"},
		{"limits: {streams: 2}\n" + crowd(1), ""},
	} {
		_, err := Load(write(t, t.TempDir(), "ironwarp.yaml", tc.main), true)
		if got := fmt.Sprint(err); tc.want == "" && err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("%q: got  %v\nwant %s", tc.main, err, tc.want)
		}
	}
}
