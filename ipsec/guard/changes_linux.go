package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"golang.org/x/sys/unix"
)

// Multicast groups that report changes to policies, devices, rules and to
// nf_tables.
const (
	groupXfrmPolicy = 1 << (4 - 1)  // XFRMNLGRP_POLICY
	groupLink       = 1 << 0        // RTNLGRP_LINK
	groupRule4      = 1 << (8 - 1)  // RTNLGRP_IPV4_RULE
	groupRule6      = 1 << (19 - 1) // RTNLGRP_IPV6_RULE
	groupNFTables   = 1 << (7 - 1)  // NFNLGRP_NFTABLES
)

// group is what a socket of netlink hears.
type group struct {
	family int
	groups uint32
	about  string // messages with this name in them; "": all
}

// Changes pokes the channel for every change of what guards consist of, until stop
// is called or ctx ends. The error says what cannot be heard; the rest is.
func Changes(ctx context.Context, netns string) (changed <-chan struct{}, stop func(), err error) {
	return follow(ctx, netns, group{unix.NETLINK_XFRM, groupXfrmPolicy, ""},
		group{unix.NETLINK_ROUTE, groupLink | groupRule4 | groupRule6, ""},
		group{unix.NETLINK_NETFILTER, groupNFTables, quotesTable})
}

// BlockChanges does that for the blocks. It fails as that does.
func BlockChanges(ctx context.Context, netns string) (changed <-chan struct{}, stop func(), err error) {
	return follow(ctx, netns, group{unix.NETLINK_NETFILTER, groupNFTables, ""})
}

func follow(ctx context.Context, netns string, groups ...group) (<-chan struct{}, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	var readers sync.WaitGroup
	var errs []error
	for _, g := range groups {
		f, err := netlinkGroup(netns, g.family, g.groups)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		end := context.AfterFunc(ctx, func() { f.Close() })
		readers.Go(func() {
			defer end()
			notify(f, changed, g.about)
		})
	}
	return changed, func() {
		cancel()
		readers.Wait()
	}, errors.Join(errs...)
}

// notify pokes changed for every message that has the name in it, until the socket
// is closed.
func notify(f *os.File, changed chan<- struct{}, about string) {
	buf := make([]byte, 1<<16)
	for {
		// ENOBUFS says that messages were lost: there were changes.
		n, err := f.Read(buf)
		if err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return
		}
		if err == nil && !bytes.Contains(buf[:n], []byte(about)) {
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

func netlinkGroup(netns string, family int, groups uint32) (f *os.File, err error) {
	err = nsdo.Do(netns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			unix.Close(fd)
			return fmt.Errorf("listen to netlink: %w", err)
		}
		f = os.NewFile(uintptr(fd), "netlink")
		return nil
	})
	return f, err
}
