package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestNumbersForPeople(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{bytesText(0), "0 B"},
		{bytesText(1023), "1023 B"},
		{bytesText(1024), "1.00 KiB"},
		{bytesText(64 << 10), "64.0 KiB"},
		{bytesText(1<<20 - 1), "1.00 MiB"},
		{bytesText(256 << 20), "256 MiB"},
		{bytesText(1500 << 20), "1.46 GiB"},
		{bytesText(1 << 40), "1.00 TiB"},
		{rateText(0), "-"},
		{rateText(1 << 20), "1.00 MiB/s"},
		{countText(0), "-"},
		{countText(3.25), "3.2"},
		{countText(4321), "4321"},
		{countText(250_000), "250k"},
		{ageText(-1), "-"},
		{ageText(59.9), "59s"},
		{ageText(61), "1m01s"},
		{ageText(3600 * 5), "5h00m"},
		{ageText(86400*3 + 7200), "3d02h"},
		{microsText(0), "-"},
		{microsText(31.25), "31.2 us"},
		{microsText(2170), "2.17 ms"},
		{microsText(3.5e6), "3.50 s"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}

func TestTablesAreAlignedAndPlainOffTerminals(t *testing.T) {
	var b bytes.Buffer
	w := &ironwarp{stdout: &b}
	s := w.sheet("name", ">size")
	s.row("a", w.bad("7"))
	s.row("longer", w.good("1000"))
	s.print()
	want := "NAME    SIZE\na          7\nlonger  1000\n"
	var got strings.Builder
	for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		got.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	if got.String() != want {
		t.Errorf("\n%q\nwant\n%q", got.String(), want)
	}
}

func TestProgressIsALineEachOffTerminals(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &ironwarp{stderr: &b}}
	p.show("one")
	p.show("one")
	p.show("")
	p.show("two")
	p.end()
	if b.String() != "one\ntwo\n" {
		t.Errorf("%q", b.String())
	}
}
