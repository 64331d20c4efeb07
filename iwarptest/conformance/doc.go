// Package conformance is one suite of cases for the two ends of an RDMAP
// Stream: what RFC 5040, RFC 5041 and RFC 7306 promise a consumer about
// operations, their order and completion, errors and endings. It runs over any
// pair of ends, of this project or another, so that one text defines what an RNIC
// must do, whatever is below it and whoever wrote it.
//
// # Over a lower layer
//
// The author of a ddp.LLP needs a function that makes a connected pair of them;
// OverLLP puts queue pairs of package verbs on them. OverMPA does so over TCP,
// with the MPA settings of each side.
//
//	func TestConformance(t *testing.T) {
//		connect := conformance.OverLLP(t, func(t testing.TB) (a, b ddp.LLP) { return mine.Pair(t) })
//		conformance.Run(t, connect, conformance.Cases())
//	}
//
// Cases are all cases, Core those that depend on how segments travel, for the
// many variants of one lower layer.
//
// # Over another implementation
//
// An implementation of RDMAP takes part by an Endpoint: some fifteen methods to
// register memory, post, and wait for completions and for the end. They hand
// over no pointers, so that the end may be another process, or a machine at the
// other end of a cable that is driven by lines of text. Can reports what
// it lacks, and the cases that need that are skipped, each with the reason. Host makes
// the other end, a queue pair of package verbs, on whatever connection Start
// brings up.
//
// # What every case checks
//
// Every case ends with the end of its streams, and besides its own subject it checks
// this: work completes in the order of posting, each element once, and
// nothing succeeds behind a failure; what was posted and not done is flushed;
// all registered memory and Guard bytes around it hold exactly what they should.
// Each case runs in both directions. Those that provoke an error do so beside a
// second stream of the same two RNICs, which must not notice.
package conformance
