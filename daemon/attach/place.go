package attach

import (
	"cmp"
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
)

// place is where a disk is attached: in which partition, and as whom.
type place struct {
	partition string // "": in none
	label     string // the security label of who attached it, as the kernel reported it; "": it reported none
}

// of is the place of a consumer's sessions. Who has a label by configuration has that, and one session for all users.
func (in place) of(by *local.Consumer) place {
	if in.partition == "" || by.Disks.Label() != "" {
		in.label = ""
	}
	return in
}

// placeOf is where a caller attaches something of a peer. It fails with an *api.Error where there is no such partition, no
// link of it with the peer, or the caller's label may not use it.
func (a *Attacher) placeOf(who local.Caller, p Peer, partition string) (place, error) {
	c := a.cfg.Config()
	in := place{partition: cmp.Or(partition, c.ULPPartition(who.Declared())), label: who.Label}
	if in.partition == "" {
		return place{}, nil
	}
	if _, ok := c.Partition(in.partition); !ok {
		e := &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("this host has no partition %q", in.partition), Fix: "`ironwarp partition ls` lists them; declare it under partitions:"}
		return in, e
	}
	if !p.Declared().MayUsePartition(in.partition) {
		return in, noLink(p.Declared().Name, in.partition)
	}
	label := cmp.Or(who.Disks.Label(), who.Label)
	if err := a.cfg.MayUse(label, in.partition); err != nil {
		return in, &api.Error{Code: api.CodeForbidden, Message: err.Error(), Fix: "allow it in the policy, or give the ULP or the service another label: `ironwarp partition show " + in.partition + "`"}
	}
	return in, nil
}

// noLink is the error for a peer with whom this host has no link of a partition.
func noLink(peer, partition string) *api.Error {
	return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("this host and peer %s have no link of partition %s", peer, partition),
		Fix: "`ironwarp partition show " + partition + "` shows its members: both hosts have to be, and one of them a full one"}
}

// checkPlace fails if a disk that is attached already is so in another partition than is asked for.
func (at *Attachment) checkPlace(in place) error {
	if at.partition == in.partition {
		return nil
	}
	where := "in no partition"
	if at.partition != "" {
		where = "in partition " + at.partition
	}
	return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is attached %s already", at.Key, where), Fix: fmt.Sprintf("`ironwarp detach %s` first", at.Key)}
}
