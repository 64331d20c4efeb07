package ipsec

import "time"

const (
	// MaxPeers bounds the peers of one Manager: each has a goroutine and ten
	// kernel policies or more, which the kernel searches.
	MaxPeers = 1024
	// initiateTimeout bounds one attempt to bring up a child: IKE_SA_INIT,
	// IKE_AUTH, CREATE_CHILD_SA with retransmissions on a lossy path.
	initiateTimeout = 15 * time.Second
	// maxInitiates is how many attempts wait in charon at the same time: each
	// holds one of its 16 worker threads, which must not run out.
	maxInitiates = 6

	// A connection to charon that is lost is tried again after
	// reconnectMin, doubling to reconnectMax.
	reconnectMin = 20 * time.Millisecond
	reconnectMax = time.Second

	// reloadSettle is how long after something was loaded again charon is asked once
	// more, doubling to signPoll: swanctl may still be unloading.
	reloadSettle = 250 * time.Millisecond

	// sessionWait is how long Prepare waits for charon to come back, at least.
	sessionWait = 3 * time.Second
	// quickModeSettle is how long Prepare leaves to an IKEv1 peer to install its half
	// of an SA.
	quickModeSettle = 25 * time.Millisecond
	// Lists of a peer's SAs: paceBurst at once, then one per paceEvery.
	paceBurst = 16
	paceEvery = 20 * time.Millisecond

	// linesPerSecond bounds the log of one kind of event of one peer.
	linesPerSecond = 5

	// doubtWait is how long an attempt to bring a child up waits for a list that may have it.
	doubtWait = time.Second

	// reviveWait is the patience with the answer to the delete of such a child.
	reviveWait = 1500 * time.Millisecond
	// guardRecheck is how often the kernel is compared with the guard that should
	// be there, beside the notifications of the kernel.
	guardRecheck = 5 * time.Second
	// blockPause is the least time between two looks at the kernel's blocks.
	blockPause = 100 * time.Millisecond
	// blockSlack is what is left of a block that is not worth putting back.
	blockSlack = 500 * time.Millisecond
)
