// Package conformance is one suite of cases for the two ends of an RDMAP
// Stream: what RFC 5040, RFC 5041 and RFC 7306 promise a consumer about
// operations, their order and completion, and the errors.
package conformance
