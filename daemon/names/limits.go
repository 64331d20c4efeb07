package names

import "time"

const (
	// refreshEvery is how often the name of a peer is looked up whose link works: as often as many zones' times to
	// live ask for. The system's resolver may have a cache of its own.
	refreshEvery = time.Minute
	// retryFirst and retryMost are the pauses while there is no answer, or the link is broken: a host that has moved is
	// found soon, and a server that does not answer is not asked without end.
	retryFirst = 2 * time.Second
	retryMost  = 30 * time.Second
	// lookupTime bounds a lookup: a server that is silent delays no other peer's.
	lookupTime = 5 * time.Second
	// brokenTime is how long a link has to be broken before its streams are given up for another address: key
	// exchanges and rekeys take less.
	brokenTime = 10 * time.Second
	// moveEvery bounds how often one peer moves, whatever its answers do.
	moveEvery = 15 * time.Second
	// maxAnswers are looked at of one answer, in order of their values. A name of one host has few.
	maxAnswers = 16
	// maxLookups at once.
	maxLookups = 8
	// tickEvery is how often it is seen which names are due.
	tickEvery = time.Second
)
