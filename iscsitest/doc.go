// Package iscsitest is an initiator that judges an iSCSI target (RFC 7143): it does to it what initiators do,
// and what they must not do, and says which sentence of which RFC the target has broken.
//
// A Case is one sentence. Run logs in to a Target for each of them, in a session of its own, and makes a
// Report, which people read as text and machines as JSON or JUnit; a case that has failed brings along what
// was sent and received, in words and as a capture that Wireshark opens.
//
//	target, err := iscsitest.ParseURL("iscsi://127.0.0.1:3260/iqn.2026-01.org.example:disk/0")
//	...
//	report, err := iscsitest.Run(ctx, target, iscsitest.Options{})
//	for _, r := range report.Results {
//		if r.Verdict == iscsitest.Fail {
//			t.Errorf("%s: %s", r.Case, r.Found)
//		}
//	}
//
// # Verdicts
//
// A target is failed for what it has done, never for what it has not done yet: an answer that does not come in
// time makes a case inconclusive, unless the target answers what was asked behind it and still not that. A
// connection that ends where nothing ends it is tried again. Who is slow, has a window of one command or loses
// connections is not failed for that.
//
// What holds for every PDU is watched in every case, and judged once, in the cases of group "always".
package iscsitest
