package main

import (
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// resourcesPage shows who uses how much of the RNIC: every resource of the device, and
// for others those that they use.
func (w *ironwarp) resourcesPage(r api.Resources) {
	t := w.sheet("who", "trust", "resource", ">used", ">limit", ">share")
	add := func(who string, p api.Principal, all bool) {
		shown := false
		for _, u := range p.Uses {
			if u.Used == 0 && !all {
				continue
			}
			used := amountText(u.Name, u.Used)
			if u.Limit > 0 && u.Used*10 >= u.Limit*9 {
				used = w.warn(used)
			}
			t.row(who, p.Trust, u.Name, used, amountText(u.Name, u.Limit), amountText(u.Name, u.Share))
			who, p.Trust, shown = "", "", true
		}
		if !shown {
			t.row(who, p.Trust, "-", "-", "", "")
		}
	}
	if r.Device.Kind != "" { // a ULP sees only its own
		add("device", r.Device, true)
	}
	for _, p := range r.ULPs {
		add("ULP "+p.Name, p, false)
	}
	for _, p := range r.Peers {
		add("peer "+p.Name, p, false)
	}
	t.print()
	w.printf("share: reserved, whatever others use. limit: - is that of the device\n")
	if len(r.Events) == 0 {
		return
	}
	w.printf("\n")
	t = w.sheet("peer", "event", ">times")
	for _, e := range r.Events {
		t.row(e.Peer, e.Kind, e.Count)
	}
	t.print()
	if r.EventsDropped > 0 {
		w.printf("%s\n", w.warn(fmt.Sprintf("%d events were dropped, since the RNIC's queue was full", r.EventsDropped)))
	}
}

// amountText writes what there is of a resource; 0 is a dash.
func amountText(resource string, n int64) string {
	switch {
	case n == 0:
		return "-"
	case resource == "memory":
		return bytesText(float64(n))
	}
	return fmt.Sprint(n)
}
