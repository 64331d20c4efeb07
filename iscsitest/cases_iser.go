package iscsitest

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/scsi"
)

// onStreaming is for what is said during a login over TCP.
var onStreaming = []Transport{ISERStreaming}

// helloFirst are the keys of a login after which iSER begins with a Hello.
var helloFirst = []string{"iSERHelloRequired=Yes"}

// operational begins a login and brings it to its operational stage.
func (t *T) operational() *login {
	l := t.begin(0)
	a := l.authenticate(t.names(0), iscsi.Operational)
	if a.accepted() && !a.Transit {
		a = l.step(iscsi.Security, iscsi.Operational)
	}
	if !a.accepted() {
		t.unclear("the login was refused: %v", a)
	}
	return l
}

// hello is the Hello of a session that has said that there will be one.
func (s *Session) hello(depth uint16) (iser.Header, error) {
	s.t.note(Event{Conn: s.id, Sent: true, Note: "-> iSER Hello, IRD " + strconv.Itoa(int(depth))})
	h, err := s.link.(*rdma).hello(iser.Header{MaxVersion: iser.Version, Version: iser.Version, Depth: depth}, s.t.wait())
	if err == nil {
		s.t.note(Event{Conn: s.id, Note: "<- iSER message of type " + strconv.Itoa(int(h.Op)) + ", depth " + strconv.Itoa(int(h.Depth))})
	}
	return h, err
}

// message sends any message over RDMA. The target may have ended the connection.
func (s *Session) message(what string, b []byte) {
	s.t.note(Event{Conn: s.id, Sent: true, Note: "-> " + what})
	_ = s.link.(*rdma).i.SendRaw(b)
}

// terminates is a case in which the target is sent what it has to end the connection for, behind a login with keys.
func terminates(id, source, says string, over []Transport, keys []string, send func(s *Session)) Case {
	return Case{ID: "iser." + id, Source: source, Says: says, Over: over, run: func(t *T) {
		s := t.login(options{keys: keys})
		t.amiss = true
		send(s)
		_, ended := s.ends()
		t.amiss = false
		t.require(ended, "the connection goes on")
		t.login(options{initiator: 1}).ready()
	}}
}

func iserCases() []Case {
	return []Case{
		{ID: "iser.extensions", Source: "RFC 7145 6.3", Says: "In response to the offered RDMAExtensions=Yes a target MUST respond in the next Login Response PDU with which it is allowed to do so", Over: onRDMA, run: func(t *T) {
			a := t.operational().step(iscsi.Operational, iscsi.Operational, "RDMAExtensions=Yes")
			v, ok := a.key("RDMAExtensions")
			t.require(a.accepted() && ok && (v == "Yes" || v == "No"), "it is answered by %v", a)
		}},
		{ID: "iser.extensions-no", Source: "RFC 7145 6.3", Says: "iSER-assisted mode MUST NOT be used if the initiator offers RDMAExtensions=No: the result is No, and the login goes on", Over: onStreaming, run: func(t *T) {
			l := t.operational()
			a := l.finish("RDMAExtensions=No")
			v, _ := lookupPair(l.said, "RDMAExtensions")
			t.require(a.accepted() && v != "Yes", "it is answered by %v", a)
		}},
		{ID: "iser.keys", Source: "RFC 7145 3.2, 6.4 to 6.10", Says: "the keys of iSER MUST NOT be answered with NotUnderstood, and lengths are the smaller of both", Over: onRDMA, run: func(t *T) {
			a := t.operational().step(iscsi.Operational, iscsi.Operational, "RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=512", "TargetRecvDataSegmentLength=512",
				"MaxOutstandingUnexpectedPDUs=16", "MaxAHSLength=0", "TaggedBufferForSolicitedDataOnly=Yes", "iSERHelloRequired=No")
			t.require(a.accepted(), "the login is refused: %v", a)
			for _, p := range a.pairs {
				t.require(p.Value != "NotUnderstood", "%s=%s", p.Key, p.Value)
			}
			for _, key := range []string{"InitiatorRecvDataSegmentLength", "TargetRecvDataSegmentLength"} {
				v, ok := a.key(key)
				t.require(ok && v == "512", "%s=512 is answered by %q", key, v)
			}
		}},
		{ID: "iser.unexpected-declared", Level: Should, Source: "RFC 7145 6.7", Says: "MaxOutstandingUnexpectedPDUs SHOULD be negotiated, as without it nothing bounds what the other side has to have room for", Over: onRDMA, run: func(t *T) {
			l := t.operational()
			l.finish("RDMAExtensions=Yes", "MaxOutstandingUnexpectedPDUs=16")
			v, ok := lookupPair(l.said, "MaxOutstandingUnexpectedPDUs")
			t.require(ok && v != "1", "the target says %v", l.said)
		}},
		{ID: "iser.unexpected", Source: "RFC 7145 6.7, 8.1.2", Says: "as many unexpected PDUs at a time are taken as the target has declared", Over: onRDMA, run: func(t *T) {
			l := t.operational()
			a := l.finish("RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength="+strconv.Itoa(segment), "MaxOutstandingUnexpectedPDUs="+strconv.Itoa(receives/2))
			if !a.accepted() {
				t.unclear("the login was refused: %v", a)
			}
			n, declared := number(l.said, iscsi.KeyMaxOutstandingUnexpectedPDUs)
			if !declared {
				n = 2
			} else if n == 0 {
				n = receives / 2
			}
			s := l.session(a, options{})
			waiting := map[uint32]bool{}
			for range min(int(n), receives/2) {
				waiting[s.ping([]byte("unexpected"))] = true
			}
			for len(waiting) > 0 {
				p := s.awaitPDU(iscsi.OpNOPIn)
				t.require(string(p.Data) == "unexpected", "a ping is answered by %v", p)
				delete(waiting, p.BHS.ITT())
			}
		}},
		{ID: "iser.read-room", Source: "RFC 7143 11.4.5.1, RFC 7145 7.3.5", Says: "no more is written by RDMA than was expected, even if there is room for it behind", Over: onRDMA, run: func(t *T) {
			s := t.login(options{}).ready()
			n := 8 * s.blockLen()
			in := bytes.Repeat([]byte{0xa5}, 2*n)
			k := s.waitFor(s.start(read10(0, 16), nil, in, how{edtl: uint32(n)}))
			t.require(bytes.Count(in[n:], []byte{0xa5}) == n, "bytes behind the %d that were expected have changed", n)
			t.require(k.Residual == iscsi.Residual{Overflow: true, Count: uint32(n)} || k.Status == scsi.CheckCondition, "it ends with %s and the residual %+v", k.outcome(), k.Residual)
		}},
		{ID: "iser.invalidates", Level: Should, Source: "RFC 7145 7.3.2", Says: "the message with the SCSI Response carries the Read STag, or the Write STag if there is no other, to be invalidated", Over: onRDMA, run: func(t *T) {
			s := t.login(options{}).ready()
			k := s.good(s.do(read10(0, 8), nil, make([]byte, 8*s.blockLen())), "READ")
			t.require(len(k.tags) == 1 && k.closed == k.tags[0], "a READ that has advertised %#x has %#x invalidated (0: none)", k.tags, k.closed)
		}},
		{ID: "iser.solicited-only", Source: "RFC 7145 6.9", Says: "with TaggedBufferForSolicitedDataOnly=Yes the Write Base Offset is that of the solicited data alone", Need: Data, Over: onStreaming, run: func(t *T) {
			s := t.login(options{keys: []string{"TaggedBufferForSolicitedDataOnly=Yes", "ImmediateData=Yes", "FirstBurstLength=4096"}}).ready()
			data := t.pattern(64 * s.blockLen())
			s.good(s.do(write10(64, 64), data, nil), "WRITE")
			s.verify(64, data)
		}},
		{ID: "iser.all-solicited", Source: "RFC 7145 7.3.6", Says: "with ImmediateData=No all data of a WRITE are read by RDMA", Need: Data, Over: onRDMA, run: func(t *T) {
			s := t.login(options{keys: []string{"ImmediateData=No", "MaxBurstLength=8192"}}).ready()
			data := t.pattern(256 * s.blockLen())
			s.good(s.do(write10(64, 256), data, nil), "WRITE")
			s.verify(64, data)
		}},
		{ID: "iser.hello", Source: "RFC 7145 5.1.3, 9.4", Says: "with iSERHelloRequired=Yes the target MUST return the HelloReply Message as its first, with the smaller of its iSER-ORD and the initiator's iSER-IRD", Over: onStreaming, run: func(t *T) {
			s := t.login(options{keys: helloFirst})
			h, err := s.hello(1)
			switch {
			case errors.Is(err, errTimeout):
				t.unclear("a Hello was not answered for %v", t.o.Timeout)
			case err != nil:
				t.fail("a Hello is answered by the end of the connection: %v", err)
			}
			t.require(h.Op == iser.OpHelloReply && !h.Reject && h.MaxVersion >= iser.Version && h.Version == iser.Version && h.Depth <= 1, "a Hello with versions 10 to 10 and an IRD of 1 is answered by %+v", h)
			s.ready()
			in := make([]byte, 8*s.blockLen())
			s.good(s.do(read10(0, 8), nil, in), "READ after the Hello")
		}},
		terminates("no-hello", "RFC 7145 10.1.3.4, 10.1.3.3", "where the first message has to be a Hello, another one is a protocol error, for which the stream MUST be terminated", onStreaming, helloFirst, func(s *Session) {
			s.ping(nil)
		}),
		terminates("hello-length", "RFC 7145 10.1.3.3", "a length error of a Hello is a format error, for which the stream MUST be terminated", onStreaming, helloFirst, func(s *Session) {
			s.message("a Hello that is too long", append([]byte{byte(iser.OpHello) << 4, iser.Version<<4 | iser.Version, 0, 1}, make([]byte, iser.HeaderLen)...))
		}),
		terminates("type-unassigned", "RFC 7145 10.1.3.3", "for illegal contents of a header the stream MUST be terminated", onRDMA, nil, func(s *Session) {
			s.message("a message of type 7", append([]byte{0x70}, make([]byte, iser.HeaderLen+iscsi.BHSLen-1)...))
		}),
	}
}
