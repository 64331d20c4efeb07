package charon

import (
	"testing"
	"time"
)

// The first is what strongSwan 5.9.8 lists.
func TestLabelsAreReadFromHexadecimalDigits(t *testing.T) {
	for text, want := range map[string]string{
		"73797374656d5f753a6f626a6563745f723a72646d615f7365637265745f7400": "system_u:object_r:rdma_secret_t",
		"73797374656d5f75": "system_u",
		"":                 "",
		"00":               "00",
		"0000":             "\x00",
		"abc":              "abc",
		"system_u":         "system_u",
		"410042":           "A\x00B",
	} {
		if got := ParseChild(Section("label", text), "beta-out-lab-1", time.Time{}).Label; got != want {
			t.Errorf("label %q is %q, want %q", text, got, want)
		}
	}
}
