package iscsi

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestPairs(t *testing.T) {
	got, err := ParsePairs([]byte("A=1\x00\x00X#B=a=b\x00iSCSIProtocolLevel=\x00"))
	if want := []Pair{{"A", "1"}, {"X#B", "a=b"}, {"iSCSIProtocolLevel", ""}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Error(got, err)
	}
	for name, text := range map[string]string{
		"no delimiter":  "A=1",
		"no value":      "A\x00",
		"no key":        "=1\x00",
		"a space":       "A B=1\x00",
		"a digit first": "1A=1\x00",
		"long key":      strings.Repeat("A", 64) + "=1\x00",
		"long value":    "A=" + strings.Repeat("1", 256) + "\x00",
		"long response": "CHAP_R=" + strings.Repeat("1", maxValue+1) + "\x00",
		"many pairs":    strings.Repeat("A=1\x00", maxKeys+1),
		"much text":     strings.Repeat("\x00", MaxText+1),
	} {
		if _, err := ParsePairs([]byte(text)); !errors.Is(err, ErrText) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTextSpansPDUs(t *testing.T) {
	var b textBuffer
	for _, s := range []string{"Initi", "atorNam", "e=x\x00"} {
		pairs, err := b.add([]byte(s), s != "e=x\x00")
		if err != nil || len(pairs) > 0 != !b.open {
			t.Fatal(pairs, err)
		}
	}
	for i := 0; ; i++ {
		if _, err := b.add(make([]byte, 8192), true); err != nil {
			if i != MaxText/8192 {
				t.Errorf("%d bytes are taken", i*8192)
			}
			break
		}
	}
}

func TestNumbersAndBinaries(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "10": 10, "0x1F": 31, "0Xff": 255} {
		if got, err := parseNumber(s); err != nil || got != want {
			t.Error(s, got, err)
		}
	}
	for _, s := range []string{"", "-1", "+1", "01", "1 ", "0x", "0x_1", "a", "18446744073709551616", "0b1"} {
		if _, err := parseNumber(s); err == nil {
			t.Errorf("%q is a number", s)
		}
	}
	for s, want := range map[string]string{"0x616": "\x06\x16", "0b YQ==": "", "0bYQ==": "a", "0X6162": "ab"} {
		if got, err := ParseBinary(s); string(got) != want || (err != nil) != (want == "") {
			t.Error(s, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	for s, want := range map[string]bool{
		"iqn.1993-11.com.example:disk.1": true, "eui.02004567A425678D": true, "naa.52004567BA64678D": true, "iqn.2001-04.de.bücher:x": true,
		"iqn.": false, "disk": false, "iqn.1993-11.com.Example": false, "iqn.a b": false, "iqn.a\x01": false, "iqn.\xff": false,
		"iqn.a\u009b2J": false, "iqn.a\u202eb": false, "iqn.a\u200b": false, "iqn.a\u00a0b": false,
		"iqn." + strings.Repeat("a", MaxName-4): true, "iqn." + strings.Repeat("a", MaxName-3): false,
	} {
		if IsName(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("A=1\x00B=2\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		pairs, err := ParsePairs(b)
		if err != nil {
			return
		}
		var again []byte
		for _, p := range pairs {
			again = AppendPair(again, p.Key, p.Value)
			if _, err := ParseBinary(p.Value); err == nil {
				parseNumber(p.Value)
			}
		}
		if back, err := ParsePairs(again); err != nil || !reflect.DeepEqual(back, pairs) || len(again) > len(b) {
			t.Fatalf("%q became %q: %v", b, again, err)
		}
		if len(pairs) == 0 && len(bytes.Trim(b, "\x00")) > 0 {
			t.Fatalf("%q has no pairs", b)
		}
	})
}
