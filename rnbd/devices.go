package rnbd

import "sync/atomic"

// deviceTable holds a session's devices by id modulo maxDevices; an old id is not
// mistaken for a newer one. A page is allocated with its first device and stays, so that
// a session with few devices is small.
type deviceTable [maxDevices / devicePage]atomic.Pointer[[devicePage]atomic.Pointer[device]]

// get returns the device of an id, nil if there is none.
func (t *deviceTable) get(id uint32) *device {
	i := id % maxDevices
	page := t[i/devicePage].Load()
	if page == nil {
		return nil
	}
	if d := page[i%devicePage].Load(); d != nil && d.id == id {
		return d
	}
	return nil
}

// add adds d. It returns false if its slot is taken.
func (t *deviceTable) add(d *device) bool {
	i := d.id % maxDevices
	page := t[i/devicePage].Load()
	if page == nil {
		t[i/devicePage].CompareAndSwap(nil, new([devicePage]atomic.Pointer[device]))
		page = t[i/devicePage].Load()
	}
	return page[i%devicePage].CompareAndSwap(nil, d)
}

// remove removes d if it is there.
func (t *deviceTable) remove(d *device) {
	i := d.id % maxDevices
	if page := t[i/devicePage].Load(); page != nil {
		page[i%devicePage].CompareAndSwap(d, nil)
	}
}

// all iterates over the devices.
func (t *deviceTable) all(yield func(*device) bool) {
	for i := range t {
		page := t[i].Load()
		if page == nil {
			continue
		}
		for j := range page {
			if d := page[j].Load(); d != nil && !yield(d) {
				return
			}
		}
	}
}
