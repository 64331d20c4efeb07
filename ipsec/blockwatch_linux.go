package ipsec

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"
)

// groupNFTables is the multicast group that tells of changes to nf_tables.
const groupNFTables = 1 << (7 - 1) // NFNLGRP_NFTABLES

// blockChanges tells of changes to nf_tables.
func (m *Manager) blockChanges(ctx context.Context) (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	f, err := netlinkGroup(m.cfg.NetNS, unix.NETLINK_NETFILTER, groupNFTables)
	if err != nil {
		m.cfg.Logger.Warn("cannot follow changes of nf_tables; blocks are checked now and then", "err", err)
		return c, func() {}
	}
	end := context.AfterFunc(ctx, func() { f.Close() })
	var reader sync.WaitGroup
	reader.Go(func() { notify(f, c, "") })
	return c, func() {
		end()
		f.Close()
		reader.Wait()
	}
}
