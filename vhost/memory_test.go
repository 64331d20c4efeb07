package vhost

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A request whose parts are spread over many regions has no more parts than one of as many
// descriptors: each takes memory here.
func TestPartsOfARequest(t *testing.T) {
	var regions []*region
	for i := range maxSlots {
		regions = append(regions, &region{regionInfo: regionInfo{guest: uint64(16 * i), size: 16, user: uint64(16 * i)}, mem: make([]byte, 16)})
	}
	mem, err := newMemory(regions)
	if err != nil {
		t.Fatal(err)
	}
	w, c := walker{mem: mem}, &chain{}
	for range maxChain {
		if err = w.addDescriptor(c, desc{len: 16 * maxSlots}); err != nil {
			break
		}
	}
	if n := len(c.out); !errors.Is(err, errRing) || n > maxChain+maxSlots {
		t.Errorf("a request of %d parts: %v", n, err)
	}
}

// A front end that shares more memory than a machine has takes no address space from the
// others, and from the process.
func TestAddressSpace(t *testing.T) {
	const tera = 1 << 40
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4*tera); err != nil {
		t.Fatal(err)
	}
	mapAt := func(at uint64) *region {
		r, err := mapRegion(regionInfo{guest: at, size: tera, user: at}, fd)
		if err != nil && !errors.Is(err, errMemory) {
			t.Fatal(err)
		}
		return r
	}
	var all []*region
	for at := uint64(0); at < 3*tera; at += tera {
		all = append(all, mapAt(at))
	}
	if _, err := newMemory(all[:2]); err != nil {
		t.Error(err)
	}
	if _, err := newMemory(all); !errors.Is(err, errMemory) {
		t.Errorf("3 TiB of one front end: %v", err)
	}
	for r := all[0]; r != nil && len(all) < 100; {
		if r = mapAt(0); r != nil {
			all = append(all, r)
		}
	}
	if len(all) > maxMapped/tera {
		t.Errorf("%d TiB of all front ends", len(all))
	}
	unmap(all)
	if r := mapAt(0); r == nil {
		t.Error("nothing is given back")
	} else {
		unmap([]*region{r})
	}
}
