package block

import (
	"crypto/sha256"
	"testing"
)

// TestNamedID: a disk whose UUID comes from its name keeps it from release to release.
func TestNamedID(t *testing.T) {
	id := NamedID("device", "wwid 1")
	full := sha256.Sum256([]byte("ironwarp device wwid 1\n"))
	sum := ID(full[:16])
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	if id != sum || id.String()[14] != '8' {
		t.Errorf("%v, want %v", id, sum)
	}
	var back ID
	if err := back.UnmarshalText([]byte(id.String())); err != nil || back != id {
		t.Errorf("%v became %v: %v", id, back, err)
	}
}
