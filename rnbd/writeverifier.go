package rnbd

import "sync/atomic"

// The life of a disk (block.Identity) is its write verifier, as NFS has one (RFC 1813 section
// 3.3.7, RFC 8881 section 18.3.3): under another one, writes that were acknowledged and not
// flushed may be lost.

// unflushed counts the writes (or parts of one) that the server has acknowledged, and
// those of them that a flush has covered.
type unflushed struct{ acked, flushed atomic.Uint64 }

// noteFlush records a successful flush that began when n writes were acknowledged.
func (u *unflushed) noteFlush(n uint64) {
	for {
		have := u.flushed.Load()
		if have >= n || u.flushed.CompareAndSwap(have, n) {
			return
		}
	}
}

func (u *unflushed) any() bool { return u.acked.Load() != u.flushed.Load() }

// checkWriteVerifier checks the server's answer about the disk against what is known of it: it
// fails with ErrWritesLost where acknowledged writes may be lost that no flush has covered, for
// example by a power cut. Then no flush succeeds that should have covered them. asked is the
// claim that the server answered.
func (d *Disk) checkWriteVerifier(asked Claim, rsp *openRsp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.claim.isOfAnother(&rsp.Identity):
		return ErrOtherDisk
	case !d.writes.needSameVerifier():
	case d.claim.Life == rsp.Identity.Life:
	case d.claim.Life == asked.Life && rsp.Flags&flagKept != 0:
	default:
		return ErrWritesLost
	}
	return nil
}
