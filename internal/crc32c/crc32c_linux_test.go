package crc32c

import (
	"hash/crc32"
	"os"
	"syscall"
	"testing"
)

// TestReadsNothingElse ends, and then begins, inputs at a page that faults.
func TestReadsNothingElse(t *testing.T) {
	page := os.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("mapping three pages: %v", err)
	}
	defer syscall.Munmap(m)
	middle := m[page : 2*page]
	copy(middle, random(page))
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatalf("making a page fault: %v", err)
		}
	}
	for n := range min(page, 2048) + 1 {
		for _, p := range [][]byte{middle[:n], middle[page-n:]} {
			want := crc32.Checksum(p, table)
			for _, impl := range implementations() {
				if n < impl.min {
					continue
				}
				if got := impl.update(0, p); got != want {
					t.Fatalf("%s, %d bytes next to a guard page: %#08x, want %#08x", impl.name, n, got, want)
				}
			}
		}
	}
}
