package ipsec

import "time"

const (
	// MinSecretBytes is the least material of a pre-shared key: 96 bits, below
	// which guessing offline against a recorded handshake comes into reach.
	MinSecretBytes = 12
	// generatedSecretBytes is what GenerateSecret draws.
	generatedSecretBytes = 32
	// maxSecretBytes keeps a wrong file (a disk image, /dev/zero) out of memory
	// and a VICI value within its 16-bit length.
	maxSecretBytes = 4096

	// MaxPeers bounds the peers of one Manager: each has a goroutine and ten
	// kernel policies or more, which the kernel searches.
	MaxPeers = 1024
	// MaxChildren bounds the child SAs of a peer per direction.
	MaxChildren = 16

	// ikePort and natPort are the UDP ports of IKE and of ESP in UDP (RFC 7296 2,
	// RFC 3948 2.1), which no link may have.
	ikePort = 500
	natPort = 4500

	// callTimeout bounds a VICI call that charon answers from memory. A call
	// without a deadline may wait for ever when charon hangs.
	callTimeout = 5 * time.Second
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
	// versionPoll is how often a Manager asks charon for a sign of life.
	versionPoll = 5 * time.Second

	// reloadSettle is how long after something was loaded again charon is asked once
	// more, doubling to versionPoll: swanctl may still be unloading.
	reloadSettle = 250 * time.Millisecond

	// maxVanished is how many children in a row may be deleted as they come up
	// before that is called a failure: both hosts' deletes may cross the exchange,
	// and again; a peer that does not want the child deletes every one.
	maxVanished = 3
	// A child that cannot be brought up is tried again after retryMin, doubling
	// to retryMax, each time less a random half.
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
	// stableAfter is how long a child has to live so that its loss is answered at
	// once, without a pause.
	stableAfter = 100 * time.Millisecond
	// retryShortLived bounds the pause after one that lived shorter.
	retryShortLived = 200 * time.Millisecond
	// admitWait is how long Admit waits for a child to show up in the list: the
	// dialling peer's first packet may overtake the end of the IKE exchange, and the child
	// may be deleted and made anew meanwhile.
	admitWait = 5 * time.Second
	// idlePoll is how often the flows of a lost child are asked for waiting data.
	idlePoll = 25 * time.Millisecond
	// dialWait is how long after Prepare an SA is kept up for a flow that is not
	// admitted yet.
	dialWait = 30 * time.Second
	// linkWait is how long Prepare waits for charon to come back.
	linkWait = 3 * time.Second
	// quickModeSettle is how long Prepare leaves to an IKEv1 peer to install its half
	// of an SA.
	quickModeSettle = 25 * time.Millisecond
	// greetDelay is how long the side with the higher address leaves it to the
	// other one to bring up the first SA.
	greetDelay = 300 * time.Millisecond
	// Flows that wait are kicked kickTimes when their child is back: the first
	// probe may arrive before the peer has installed its half.
	kickTimes = 3
	kickEvery = 15 * time.Millisecond
	// Linux answers such a probe twice a second at most, so one that comes soon
	// after another may be in vain: flows whose data TCP has repeated without an
	// answer are kicked on every kickSlowly, but not longer than kickFor.
	kickSlowly = 75 * time.Millisecond
	kickFor    = 2 * time.Second
	// hurryMS is the longest retransmission timeout of a flow without an SA, in
	// milliseconds: the least that Linux takes.
	hurryMS = 1000
	// listenerGrace is how long the side that was dialled leaves it to the
	// dialling side to bring a lost child back, so that not both do.
	listenerGrace = 60 * time.Millisecond
	// followerGrace is added on the side with the higher address when the IKE SA
	// itself is gone, so that not both begin a new one.
	followerGrace = 80 * time.Millisecond
	// Duplicates of a child that live longer than this are ended: first by the
	// side with the lower address, later by the other one.
	leaderDedupe   = time.Second
	followerDedupe = 4 * time.Second

	// Lists of a peer's SAs: paceBurst at once, then one per paceEvery.
	paceBurst = 16
	paceEvery = 20 * time.Millisecond

	// A flow that carries no more than heartbeatBytes and heartbeatRate bytes a second
	// within Peer.IdleReap is idle: an RTRS connection's heartbeats are 72 bytes every
	// 10 s.
	heartbeatBytes = 128
	heartbeatRate  = 16

	// linesPerSecond bounds the log of one kind of event of one peer.
	linesPerSecond = 5

	// fadeCheck is how often idle streams without an SA are asked how long their
	// peers have been silent.
	fadeCheck = time.Second
	// Streams that have heard nothing for stallAfter, while they send again and
	// again, make their child suspect. It is looked for every stallCheck.
	stallAfter = 1500 * time.Millisecond
	stallCheck = 500 * time.Millisecond
	// reviveWait is the patience with the answer to the delete of such a child.
	reviveWait = 1500 * time.Millisecond
	// reviveMin is the least time between two revivals of a lane, doubling to
	// reviveMax.
	reviveMin = 10 * time.Second
	reviveMax = 2 * time.Minute
	// evictEvery is how often children of another identity are ended as long as they
	// are there.
	evictEvery = 250 * time.Millisecond
	// maxPollFlows is how many idle flows are asked for waiting data every idlePoll;
	// more are asked less often.
	maxPollFlows = 500

	// guardRecheck is how often the kernel is compared with the guard that should
	// be there, beside the notifications of the kernel.
	guardRecheck = 5 * time.Second
	// blockPause is the least time between two looks at the kernel's blocks.
	blockPause = 100 * time.Millisecond
	// blockSlack is what is left of a block that is not worth putting back.
	blockSlack = 500 * time.Millisecond
)
