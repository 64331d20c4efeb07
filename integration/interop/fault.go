package main

import "strings"

// Blame is who is to blame for a failure, by what was on the wire.
type Blame int

// The verdicts.
const (
	Nobody Blame = iota // nothing on the wire is wrong
	Peer                // siw sent something wrong: the case may be repeated
	Us                  // we sent something wrong, or accepted what we should not have
)

// judgeWire decides who is to blame. worked: the case found nothing wrong. What we sent
// has to be right whether a case noticed or not; and a stream that brought an FPDU with
// a wrong CRC must not have worked, for the receiver has to end it (RFC 5044 section
// 8.1).
func judgeWire(fs []Fault, worked bool) (Blame, string) {
	blame, what := Nobody, []string(nil)
	for _, f := range fs {
		switch {
		case !f.Siw:
			blame = Us
			what = append(what, "we sent: "+f.What)
		case worked:
			blame = Us
			what = append(what, "we did not mind that siw sent: "+f.What)
		default:
			blame = max(blame, Peer)
			what = append(what, "siw sent: "+f.What)
		}
	}
	return blame, strings.Join(what, "; ")
}
