package attach

import (
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// A device's name is the one that was asked for, or of the disk alone.
func TestDeviceName(t *testing.T) {
	for _, c := range []struct {
		name   string
		ulp    string
		req    api.AttachRequest
		want   string
		refuse string
	}{
		{"no device", "", api.AttachRequest{}, "", ""},
		{"a ULP's socket", "backup", api.AttachRequest{}, "", ""},
		{"by the disk", "", api.AttachRequest{Device: true}, "storage--1-docs", ""},
		{"by request", "", api.AttachRequest{Device: true, Name: "docs"}, "docs", ""},
		{"a name without a device", "", api.AttachRequest{Name: "docs"}, "", api.CodeInvalid},
		{"another directory", "", api.AttachRequest{Device: true, Name: "../docs"}, "", api.CodeInvalid},
		{"a ULP's device", "backup", api.AttachRequest{Device: true}, "", api.CodeForbidden},
	} {
		got, err := deviceName(Disk{c.ulp, "storage-1", "docs"}, c.req)
		code := ""
		if e, ok := err.(*api.Error); ok {
			code = e.Code
		}
		if got != c.want || code != c.refuse {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestDevicesHaveNamesOfTheirOwn(t *testing.T) {
	a, _ := newAttacher(t)
	claim := func(k Disk, name string) error {
		_, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{device: name}, place{}, "", func() {}, nil)
		return err
	}
	docs, other := Disk{Peer: "beta", Export: "docs"}, Disk{Peer: "gamma", Export: "docs"}
	if err := claim(docs, "docs"); err != nil {
		t.Fatal(err)
	}
	if err, ok := claim(other, "docs").(*api.Error); !ok || err.Code != api.CodeInUse {
		t.Errorf("another disk by the same name: %v", err)
	}
	if err := claim(other, "gamma-docs"); err != nil {
		t.Error(err)
	}
}
