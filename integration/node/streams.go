package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Streams are the node's streams to a peer, by id. None is an error.
func (n *Node) Streams(ctx context.Context, peer string) ([]api.Stream, error) {
	st, err := n.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(st.Streams, func(x api.Stream) bool { return x.Peer != peer })
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no stream to %s", n.Name(), peer)
	}
	slices.SortFunc(list, func(a, b api.Stream) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// SameStreams compares two looks, some time apart: the same streams have the same ids
// and are each older by that time.
func SameStreams(before, after []api.Stream, apart time.Duration) (same bool, text string) {
	ids := func(list []api.Stream) (ids []string) {
		for _, x := range list {
			ids = append(ids, x.ID)
		}
		return ids
	}
	if len(before) == 0 || !slices.Equal(ids(before), ids(after)) {
		return false, fmt.Sprintf("ids %v before, %v after", ids(before), ids(after))
	}
	for i := range before {
		// The daemon measures the ages, and this process the time between them: two seconds
		// are more than the calls take.
		if grown := after[i].AgeSeconds - before[i].AgeSeconds; grown < apart.Seconds()-2 || grown < 0 {
			return false, fmt.Sprintf("%s was %.0f s old, and after %.0f s it is %.0f s old", before[i].ID, before[i].AgeSeconds, apart.Seconds(), after[i].AgeSeconds)
		}
	}
	text = fmt.Sprintf("%s: %.0f s old before, %.0f s after", before[0].ID, before[0].AgeSeconds, after[0].AgeSeconds)
	if n := len(before); n > 1 {
		text += fmt.Sprintf("; the other %d likewise", n-1)
	}
	return true, text
}
