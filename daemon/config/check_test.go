package config

import "testing"

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "512": 512, "8KiB": 8 << 10, "8 MiB": 8 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40, "8388607TiB": 8388607 << 40,
		"8388608TiB": -1, "-1": -1, "1.5GiB": -1, "1Q": -1, "TiB": -1, "1TB": -1, "": -1, "1TiBKiB": -1,
	} {
		if got, err := ParseSize(text); (err == nil) != (want >= 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}
