package device

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/bits"
	"slices"
	"strings"
	"testing"
)

// golden are bytes as a little-endian kernel has them, in the order of this machine: attributes
// have headers of two 16-bit numbers.
func golden(t *testing.T, text string) []byte {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRequestsAreLaidOutAsTheKernelReadsThem(t *testing.T) {
	one := uint32(1)
	for _, c := range []struct {
		name string
		r    request
		want string
	}{
		{"connect", request{size: 64 << 20, blockSize: 512, timeout: 20, flags: 0x12d, dead: 600, sockets: []uint32{7, 8}, backend: "ironwarp/a-b"},
			`0c000200 0000000400000000  0c000300 0002000000000000  0c000400 1400000000000000  0c000500 2d01000000000000  0c000800 5802000000000000
			 1c000700 0c000100 08000100 07000000 0c000100 08000100 08000000  11000a00 69726f6e776172702f612d6200000000`},
		{"reconfigure", request{index: &one, sockets: []uint32{9}, backend: "x"}, `08000100 01000000  10000700 0c000100 08000100 09000000  06000a00 78000000`},
		{"resize", request{index: &one, size: 1 << 40}, `08000100 01000000  0c000200 0000000000010000`},
		{"disconnect", request{index: new(uint32)}, `08000100 00000000`},
	} {
		if got, want := c.r.append(nil), golden(t, c.want); !bytes.Equal(got, want) {
			t.Errorf("%s:\n% x, want\n% x", c.name, got, want)
		}
	}
}

func TestAnswersAreReadOrRefused(t *testing.T) {
	for _, c := range []struct {
		name, msg string
		want      uint32
		ok        bool
	}{
		{"connected", "01010000 08000100 03000000", 3, true},
		{"another attribute before it", "01010000 05000900 01000000 08000100 03000000", 3, true},
		{"an index of two bytes", "01010000 06000100 03000000", 0, false},
		{"no index", "01010000", 0, false},
		{"another command", "05010000 08000100 03000000", 0, false},
		{"longer than the message", "01010000 0c000100 03000000", 0, false},
		{"shorter than its header", "01010000 03000100 03000000", 0, false},
		{"half a header", "01010000 0800", 0, false},
		{"nothing", "", 0, false},
	} {
		if got, err := parseConnected(golden(t, c.msg)); got != c.want && c.ok || (err == nil) != c.ok {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
	list, err := parseStatus(golden(t, "05010000 2c000900 14000100 08000100 00000000 05000200 01000000 14000180 08000100 02000000 05000200 00000000"))
	if want := []status{{0, true}, {2, false}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v, want %v", list, err, want)
	}
	for name, msg := range map[string]string{"connected of two bytes": "05010000 14000900 10000100 06000200 01000000 00000000", "an item that is too long": "05010000 08000900 ff000100"} {
		if list, err := parseStatus(golden(t, msg)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0})
	f.Add([]byte{5, 1, 0, 0, 24, 0, 9, 0, 20, 0, 1, 0, 8, 0, 1, 0, 0, 0, 0, 0, 5, 0, 2, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseConnected(b)
		if list, err := parseStatus(b); err == nil && len(list) > len(b)/attrHeaderLen {
			t.Errorf("%d devices in %d bytes", len(list), len(b))
		}
	})
}

func TestPadding(t *testing.T) {
	for n := range 9 {
		if p := padding(n); p < 0 || p > 3 || (n+p)%4 != 0 || bits.Len(uint(p)) > 2 {
			t.Errorf("%d bytes are padded by %d", n, p)
		}
	}
}
