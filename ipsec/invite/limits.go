package invite

import "time"

const (
	// DefaultExpiry is how long an invitation waits: long enough to carry the token over.
	DefaultExpiry = 10 * time.Minute
	// MaxExpiry is the longest: whoever waits longer has forgotten it.
	MaxExpiry = 24 * time.Hour

	// DefaultPort is the TCP port that an invitation waits at. It is none of a link's, which are guarded.
	DefaultPort = 7473

	// MaxAddresses of the inviter's in a token: hosts with more name those that count.
	MaxAddresses = 8
	// maxText bounds a name, an identity, a profile: a DNS name has 253 bytes.
	maxText = 255
	// maxToken bounds a token's text before it is decoded: all fields at their longest.
	maxToken = 2048
	// maxFrame bounds a message: Details at their longest, with what seals them.
	maxFrame = 1200

	// helloTime is for each message up to Details, which no person delays.
	helloTime = 10 * time.Second
	// confirmTime is for both people to compare the codes.
	confirmTime = 5 * time.Minute
	// settleTime is for the other host to write its half.
	settleTime = 30 * time.Second
	// joinTries is how often the joiner connects, with joinPause between, where it is cut off before an answer.
	joinTries = 8
	joinPause = 200 * time.Millisecond
	// dialTime is for each of the inviter's addresses.
	dialTime = 5 * time.Second

	// maxWaiting bounds connections that have not said a Hello with the token's key. The oldest gives way
	// to the next one, so that a flood of silent ones keeps nobody out.
	maxWaiting = 64

	// codeDigits are shown to people: whoever stands between two hosts, with the token, gets past by
	// luck once in a million invitations.
	codeDigits = 6
	codes      = 1_000_000
)
