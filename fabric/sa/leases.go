package sa

import "container/heap"

// leases are the services that end by themselves, the next one first: so the end of a lease costs nothing of a walk through all services, which
// who registers many with leases of their own would have the directory make for each.
type leases []*service

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (l leases) Len() int           { return len(l) }
func (l leases) Less(i, j int) bool { return l[i].expires.Before(l[j].expires) }

func (l leases) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

func (l *leases) Push(x any) {
	v := x.(*service)
	v.at = len(*l)
	*l = append(*l, v)
}

func (l *leases) Pop() any {
	old := *l
	v := old[len(old)-1]
	old[len(old)-1] = nil
	*l, v.at = old[:len(old)-1], noLease
	return v
}

// noLease is the place of a service that does not end by itself.
const noLease = -1

// put has a service at the place of its lease, which is new or has changed.
func (l *leases) put(v *service) {
	switch {
	case v.expires.IsZero():
		l.remove(v)
	case v.at == noLease:
		heap.Push(l, v)
	default:
		heap.Fix(l, v.at)
	}
}

func (l *leases) remove(v *service) {
	if v.at != noLease {
		heap.Remove(l, v.at)
	}
}
