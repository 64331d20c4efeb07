package export

import (
	"bytes"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rnbd"
)

// A daemon that is upgraded knows who was writing, from the file that the one of before left.
func TestWritersOfAnEarlierReleaseKeepTheirPlaces(t *testing.T) {
	var log bytes.Buffer
	h := newHost(t, slog.New(slog.NewTextHandler(&log, nil)))
	disks, attachments := [2]block.ID{block.NewID(), block.NewID()}, [2]block.ID{block.NewID(), block.NewID()}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(reservationsFile(h.cfg.StateDir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"version": 1, "writers": [
		{"disk": "` + disks[0].String() + `", "peer": "alpha", "attachment": "` + attachments[0].String() + `"},
		{"disk": "` + disks[1].String() + `", "peer": "beta", "attachment": "` + attachments[1].String() + `", "left": true}]}`)
	want := []rnbd.Reservation{
		{Disk: disks[0], Writers: []rnbd.Token{{Peer: "alpha", Attachment: attachments[0]}}},
		{Disk: disks[1], Writers: []rnbd.Token{{Peer: "beta", Attachment: attachments[1], Left: true}}},
	}
	for range 2 { // as it was, and as this release writes it
		have := h.loadReservations()
		if !reflect.DeepEqual(have, want) || log.Len() > 0 {
			t.Fatalf("%+v, want %+v; %s", have, want, &log)
		}
		if err := h.storeReservations(have); err != nil {
			t.Fatal(err)
		}
	}
	for text, words := range map[string]string{`{"version": 3, "disks": []}`: "version 3, this daemon knows 2", `{"version": 1, "writers": [{"disk": 1}]}`: "cannot unmarshal"} {
		write(text)
		if have := h.loadReservations(); have != nil || !strings.Contains(log.String(), words) {
			t.Errorf("%s: %+v; %s", text, have, &log)
		}
	}
}
