package lanestate

import "time"

const (
	// maxVanished is how many children in a row may be deleted as they come up
	// before that is called a failure: both hosts' deletes may cross the exchange,
	// and again; a peer that does not want the child deletes every one.
	maxVanished = 3
	// A child that cannot be brought up is tried again after retryMin, doubling
	// to RetryMax, each time less a random half.
	retryMin = 100 * time.Millisecond
	// RetryMax is the longest pause between two attempts to bring a child up.
	RetryMax = 10 * time.Second
	// stableAfter is how long a child has to live so that its loss is answered at
	// once, without a pause.
	stableAfter = 100 * time.Millisecond
	// retryShortLived bounds the pause after one that lived shorter.
	retryShortLived = 200 * time.Millisecond
	// AdmitWait is how long a flow waits to be admitted at least: the dialling peer's first
	// packet may overtake the end of the IKE exchange, and the child may be deleted and
	// made anew meanwhile. It waits longer while the child is being brought up, and while
	// the daemon has not answered what it was asked since. Who needs to wait has come
	// through the guard, and so by an SA that has gone: he takes up his own share of what
	// may be waiting.
	AdmitWait = 5 * time.Second
	// IdlePoll is how often the flows of a lost child are asked for waiting data.
	IdlePoll = 25 * time.Millisecond
	// DialWait is how long an SA is kept up for a flow that is being dialled and not
	// admitted yet.
	DialWait = 30 * time.Second
	// greetDelay is how long the side with the higher address leaves it to the
	// other one to bring up the first SA.
	greetDelay = 300 * time.Millisecond
	// KickTimes is how often flows that wait are kicked when their child is back: the
	// first probe may arrive before the peer has installed its half.
	KickTimes = 3
	kickEvery = 15 * time.Millisecond
	// Linux answers such a probe twice a second at most, so one that comes soon
	// after another may be in vain: flows whose data TCP has repeated without an
	// answer are kicked on every kickSlowly, but not longer than kickFor.
	kickSlowly = 75 * time.Millisecond
	kickFor    = 2 * time.Second
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
	// rejectEvery is how often children that cover other ports are ended as long as
	// they are there.
	rejectEvery = retryMin
	// soon is when a lane is looked at again after work that took its time.
	soon = time.Millisecond

	// fadeCheck is how often idle streams without an SA are asked how long their
	// peers have been silent.
	fadeCheck = time.Second
	// StallAfter is how long streams may hear nothing, while they send again and
	// again, before their child is suspect.
	StallAfter = 1500 * time.Millisecond
	stallCheck = 500 * time.Millisecond // how often that is looked for
	// reviveMin is the least time between two revivals of a lane, doubling to
	// reviveMax.
	reviveMin = 10 * time.Second
	reviveMax = 2 * time.Minute
	// evictEvery is how often children of another identity are ended as long as they
	// are there.
	evictEvery = 250 * time.Millisecond
	// maxPollFlows is how many idle flows are asked for waiting data every IdlePoll;
	// more are asked less often.
	maxPollFlows = 500
)
