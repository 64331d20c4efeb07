package ipsec

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon/charontest"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

type (
	tree = charontest.Tree
)

// fakeCharon is a charon with what these tests have it do.
type fakeCharon struct {
	*charontest.Charon
	t *testing.T
}

func newFakeCharon(t *testing.T) *fakeCharon {
	t.Helper()
	dir, err := os.MkdirTemp("", "vici")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCharon{charontest.New(filepath.Join(dir, "vici")), t}
	f.start()
	t.Cleanup(func() { f.Stop(); os.RemoveAll(dir) })
	return f
}

func (f *fakeCharon) start() {
	f.t.Helper()
	if err := f.Start(); err != nil {
		f.t.Fatal(err)
	}
}

// saOf is a list-sa event of a peer with installed children of these names.
func saOf(p pad.Peer, children ...string) tree {
	sa := charontest.SA{Name: p.Name, Local: p.Local, Remote: p.Remote, LocalID: p.LocalID, RemoteID: p.RemoteID}
	for _, name := range children {
		c := charontest.Child{Name: name, LocalTS: p.Local.String() + "/32[tcp]", RemoteTS: fmt.Sprintf("%v/32[tcp/%d]", p.Remote, p.Port)}
		for _, s := range p.ChildSAs() {
			if s.Name == name {
				c.LocalTS, c.RemoteTS = s.Local.String(), s.Remote.String()
			}
		}
		sa.Children = append(sa.Children, c)
	}
	return sa.List(7, 1)
}
