package directory

import "time"

const (
	// queue is how many messages of one host wait to be dealt with, and to be sent to it. A table comes in windows of
	// 64 (mad.MaxWindow). More are dropped: who wants an answer asks again.
	queue = 256

	// askTime is how long an answer may take, and asks how often a request is made. A manager that drops a request in silence
	// costs its host these ten seconds.
	askTime = 2500 * time.Millisecond
	asks    = 4 // see askTime
	// tableTime bounds a table: 10,000 services take a second.
	tableTime = 30 * time.Second
	// maxTable in bytes is what a table may have: 20,000 services.
	maxTable = 4 << 20

	// pollEvery is how often each manager is asked whether it is the master.
	pollEvery = 2 * time.Second
	// pollEager is how often it is while none of them is: after a failure hosts are to find the next master at once.
	pollEager = 250 * time.Millisecond
	// dialTime bounds an attempt to reach a manager, redialMin and redialMax the pauses between attempts.
	dialTime  = 30 * time.Second
	redialMin = time.Second      // see dialTime
	redialMax = 30 * time.Second // see dialTime

	// manageEvery is how often the master looks at its hosts' keys, managedAtOnce at how many of them at a time, and
	// agentAsks how often it asks: of most hosts the agent is off, and silent.
	manageEvery   = time.Minute
	managedAtOnce = 16 // see manageEvery
	agentAsks     = 1  // see manageEvery
	// returnTime is how long hosts that are away may take to come back when all are given a new key, returnLook how often that is looked at.
	returnTime = 20 * time.Second
	returnLook = 50 * time.Millisecond // see returnTime
	// leastPause is between two looks at what is due.
	leastPause = 10 * time.Millisecond

	// lease is how long a service stays in the directory without its host; it is renewed after a third of it.
	lease = 60 * time.Second
	// lookEvery is how often a host looks whether what it announces has changed.
	lookEvery = time.Second
	// maxServices is what one host announces.
	maxServices = 1024

	// trapRate and trapBurst bound the events that one host may have forwarded, per second.
	trapRate  = 10
	trapBurst = 100 // see trapRate
	// eventRate and eventBurst bound the events of one manager that this host looks at, per second: those of a fabric of 1,000 hosts
	// that comes up are more. Beyond, it takes them for lost, once in pollEvery.
	eventRate  = 10
	eventBurst = 1000 // see eventRate
	// maxEvents is how many events are kept for who has not looked yet.
	maxEvents = 256
)
