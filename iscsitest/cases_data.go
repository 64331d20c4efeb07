package iscsitest

import (
	"bytes"
	"fmt"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// verify reads what was written and fails the case if it is something else.
func (s *Session) verify(lba uint32, want []byte) {
	n := s.blockLen()
	in := make([]byte, len(want))
	k := s.good(s.do(read10(lba, uint16(len(want)/n)), nil, in), "READ of what was written")
	s.t.require(k.Received == uint32(len(in)) || s.t.target.Over != TCP, "READ of %d bytes moves %d", len(in), k.Received)
	if !bytes.Equal(in, want) {
		at := 0
		for in[at] == want[at] {
			at++
		}
		s.t.fail("what is read differs from what was written, from byte %d of %d on", at, len(want))
	}
}

// writes is a case in which data are written after a login with keys, and are read again.
func writes(id, source, says string, blocks int, keys ...string) Case {
	return Case{ID: "data." + id, Source: source, Says: says, Need: Data, Over: onTCP, run: func(t *T) {
		s := t.login(options{keys: keys}).ready()
		data := t.pattern(blocks * s.blockLen())
		s.good(s.do(write10(64, uint16(blocks)), data, nil), "WRITE")
		s.verify(64, data)
	}}
}

// wrongWrite is a case in which an initiator sends other data than it may. The command must not succeed with
// what it was not to have, and others go on. Whether it ends at all is another question: a target may go on waiting
// for the right data.
func wrongWrite(id string, level Level, source, says string, code scsi.Code, keys []string, send func(t *T, s *Session, data []byte) *Task) Case {
	return Case{ID: "data." + id, Level: level, Source: source, Says: says, Need: Data, Over: onTCP, run: func(t *T) {
		s := t.login(options{keys: keys}).ready()
		n := 16 * s.blockLen()
		before := t.pattern(n)
		s.good(s.do(write10(128, 16), before, nil), "WRITE")
		t.amiss = true
		k := send(t, s, t.pattern(n))
		alive := true
		for alive && !k.done {
			p, err := s.tryReceive(t.quiet())
			switch {
			case err != nil:
				alive = false
			default:
				s.taken(p)
			}
		}
		if k.done {
			t.require(k.Status != scsi.Good, "the command ends with GOOD")
			if code != 0 && k.Status == scsi.CheckCondition {
				t.require(k.Sense.Code == code, "sense %x/%04x, in place of %04x", byte(k.Sense.Key), uint16(k.Sense.Code), uint16(code))
			}
		}
		t.login(options{initiator: 1}).ready().silence()
	}}
}

// residual is a case about the residual of a READ or an INQUIRY.
func residual(id, source, says string, cdb func(block int) []byte, room func(block int) int, want func(block int) iscsi.Residual) Case {
	return Case{ID: "data." + id, Source: source, Says: says, run: func(t *T) {
		s := t.login(options{}).ready()
		n := s.blockLen()
		k := s.do(cdb(n), nil, make([]byte, room(n)))
		w := want(n)
		switch {
		case k.Status != scsi.Good:
			t.require(k.Status == scsi.CheckCondition && w.Overflow, "it ends with %s", k.outcome())
		case w == iscsi.Residual{} && !k.Residual.Overflow && !k.Residual.Underflow && k.Residual.Count != 0:
			// "If neither bit is set, the Residual Count field MUST be ignored on reception and SHOULD be set to 0 when sending."
			t.end(Warn, "neither bit is set, and the Residual Count is %d", k.Residual.Count)
		default:
			t.require(k.Residual == w, "the residual is %+v, in place of %+v", k.Residual, w)
		}
	}}
}

func dataCases() []Case {
	const inOrder = "RFC 7143 11.7, 11.8"
	fixed := func(n int) func(int) int { return func(int) int { return n } }
	all := []Case{
		{ID: "data.read", Source: "RFC 7143 11.7", Says: "what is read comes in full, whatever the data segments' length", Over: onTCP, run: func(t *T) {
			for _, limit := range []int{512, 1000, 8192, 262144} {
				s := t.login(options{limit: limit}).ready()
				n := s.blockLen()
				k := s.good(s.do(read10(0, 64), nil, make([]byte, 64*n)), "READ")
				t.require(k.Received == uint32(64*n), "%d bytes of %d come, with MaxRecvDataSegmentLength %d", k.Received, 64*n, limit)
				s.close()
			}
		}},
		{ID: "data.write", Source: "RFC 7143 3.2", Says: "what was written is read again", Need: Data, run: func(t *T) {
			s := t.login(options{}).ready()
			for _, blocks := range []int{1, 8, 100, 512} {
				data := t.pattern(blocks * s.blockLen())
				s.good(s.do(write10(64, uint16(blocks)), data, nil), "WRITE")
				s.verify(64, data)
			}
		}},
		writes("defaults", inOrder, "data are asked for by R2T beyond the first burst", 512),
		writes("no-immediate", "RFC 7143 13.11", "with ImmediateData=No no data come with the command, and all are asked for", 64, "ImmediateData=No", "InitialR2T=Yes"),
		writes("unsolicited", "RFC 7143 13.10", "with InitialR2T=No unsolicited Data-Out PDUs are taken up to FirstBurstLength", 256, "ImmediateData=No", "InitialR2T=No"),
		writes("immediate-and-unsolicited", "RFC 7143 13.10, 13.11", "immediate data and unsolicited Data-Out PDUs are one burst of FirstBurstLength", 256, "ImmediateData=Yes", "InitialR2T=No"),
		writes("small-bursts", "RFC 7143 13.13", "R2Ts ask for MaxBurstLength at most", 64, "MaxBurstLength=512", "FirstBurstLength=512"),
		writes("odd-bursts", "RFC 7143 13.13", "MaxBurstLength need not be a multiple of anything", 64, "MaxBurstLength=1001", "FirstBurstLength=513", "InitialR2T=No"),
		writes("many-r2ts", "RFC 7143 13.17", "there may be as many R2Ts at a time as was agreed", 256, "MaxOutstandingR2T=8", "MaxBurstLength=4096", "InitialR2T=Yes", "ImmediateData=No", "ErrorRecoveryLevel=0"),
		{ID: "data.r2t-answers-in-pieces", Source: inOrder, Says: "the answer to an R2T may have any number of PDUs, and empty ones", Need: Data, Over: onTCP, run: func(t *T) {
			s := t.login(options{keys: []string{"ImmediateData=No", "InitialR2T=Yes"}}).ready()
			n := 16 * s.blockLen()
			data := t.pattern(n)
			k := s.start(write10(64, 16), data, nil, how{hold: true})
			for !k.done {
				for len(k.r2ts) > 0 {
					r := k.r2ts[0]
					k.r2ts = k.r2ts[1:]
					k.pending--
					sn := uint32(0)
					for off, end := r.Offset, r.Offset+r.Length; ; {
						m := min(uint32(t.rng.IntN(700)), end-off)
						d := iscsi.DataOut{Final: off+m == end, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, DataSN: sn, Offset: off}
						p := &PDU{Data: data[off : off+m]}
						d.Put(&p.BHS)
						s.send(p)
						sn++
						if off += m; d.Final {
							break
						}
					}
				}
				if !k.done {
					s.later(s.nextPDU("R2T or response"))
				}
			}
			s.good(k, "WRITE")
			s.verify(64, data)
		}},
		{ID: "data.commands-mixed", Level: Practice, Source: "RFC 7143 4.2.2", Says: "the data of commands that are under way at once do not get mixed up", Need: Data, run: func(t *T) {
			s := t.login(options{}).ready()
			n := s.blockLen()
			var all []*Task
			var data [][]byte
			for i := range min(8, s.window()) {
				d := t.pattern(32 * n)
				data = append(data, d)
				all = append(all, s.start(write10(uint32(1024+32*i), 32), d, nil, how{}))
			}
			for _, k := range all {
				s.good(s.waitFor(k), "WRITE")
			}
			for i, d := range data {
				s.verify(uint32(1024+32*i), d)
			}
		}},
		residual("none", "RFC 7143 11.4.5", "without a difference there is no residual", func(int) []byte { return read10(0, 4) }, func(n int) int { return 4 * n }, func(int) iscsi.Residual { return iscsi.Residual{} }),
		residual("read-underflow", "RFC 7143 11.4.5.1", "If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled, with the count EDTL - SPDTL", func(int) []byte { return read10(0, 1) }, func(n int) int { return 2*n + 100 },
			func(n int) iscsi.Residual { return iscsi.Residual{Underflow: true, Count: uint32(n + 100)} }),
		residual("read-overflow", "RFC 7143 11.4.5.1", "If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled, with the count SPDTL - EDTL", func(int) []byte { return read10(0, 2) }, func(n int) int { return n },
			func(n int) iscsi.Residual { return iscsi.Residual{Overflow: true, Count: uint32(n)} }),
		residual("inquiry-allocation", "RFC 7143 11.4.5.3", "data that SCSI has cut to the allocation length are no overflow", func(int) []byte { return inquiry(-1, 36) }, fixed(36), func(int) iscsi.Residual { return iscsi.Residual{} }),
		residual("inquiry-underflow", "RFC 7143 11.4.5.3", "if EDTL is larger than the allocation length, iSCSI Underflow MUST be signaled", func(int) []byte { return inquiry(-1, 36) }, fixed(136),
			func(int) iscsi.Residual { return iscsi.Residual{Underflow: true, Count: 100} }),
		{ID: "data.write-overflow", Source: "RFC 7143 11.4.5.1", Says: "If SPDTL > EDTL for a WRITE, iSCSI Overflow MUST be signaled, and nothing beyond what was sent is written", Need: Data, run: func(t *T) {
			s := t.login(options{}).ready()
			n := s.blockLen()
			before := t.pattern(2 * n)
			s.good(s.do(write10(200, 2), before, nil), "WRITE")
			data := t.pattern(n)
			k := s.do(write10(200, 2), data, nil)
			t.require(k.Residual == iscsi.Residual{Overflow: true, Count: uint32(n)} || k.Status == scsi.CheckCondition, "it ends with %s and the residual %+v", k.outcome(), k.Residual)
			s.verify(201, before[n:])
		}},
		{ID: "data.write-underflow", Source: "RFC 7143 11.4.5.1", Says: "If SPDTL < EDTL for a WRITE, iSCSI Underflow MUST be signaled, and no more than SPDTL is written", Need: Data, run: func(t *T) {
			s := t.login(options{}).ready()
			n := s.blockLen()
			before := t.pattern(2 * n)
			s.good(s.do(write10(200, 2), before, nil), "WRITE")
			data := t.pattern(2 * n)
			k := s.do(write10(200, 1), data, nil)
			t.require(k.Residual == iscsi.Residual{Underflow: true, Count: uint32(n)} || k.Status == scsi.CheckCondition, "it ends with %s and the residual %+v", k.outcome(), k.Residual)
			s.verify(201, before[n:])
		}},
		{ID: "data.length-without-direction", Level: Practice, Source: "RFC 7143 11.3.1", Says: "a command that moves no data and has no expected length ends without a residual", run: func(t *T) {
			s := t.login(options{}).ready()
			k := s.good(s.do([]byte{scsi.TestUnitReady}, nil, nil), "TEST UNIT READY")
			t.require(k.Residual == iscsi.Residual{}, "the residual is %+v", k.Residual)
		}},
		{ID: "data.unknown-task", Source: "RFC 7143 11.7", Says: "a Data-Out PDU of no task harms no other", Over: onTCP, run: func(t *T) {
			s := t.login(options{}).ready()
			t.amiss = true
			d := iscsi.DataOut{Final: true, LUN: s.lun(), ITT: 0x7777, TTT: 0x1234, ExpStatSN: s.expStatSN}
			p := &PDU{Data: make([]byte, 512)}
			d.Put(&p.BHS)
			s.send(p)
			for {
				q, err := s.tryReceive(t.quiet())
				if err == errTimeout || err == nil && q.BHS.Opcode() == iscsi.OpReject {
					break // it may be dropped silently, or rejected
				} else if err != nil {
					break // or end the session
				}
				t.require(s.taken(q), "it is answered by %v", q)
			}
			t.login(options{initiator: 1}).ready()
		}},
	}
	const notAsked = "an initiator that sends what it may not gets an error and no GOOD"
	return append(all,
		wrongWrite("unsolicited-unasked", Must, "RFC 7143 13.10, 13.11", "If ImmediateData is No and InitialR2T is Yes, the target MUST reject unsolicited data", 0, []string{"ImmediateData=No", "InitialR2T=Yes"},
			func(t *T, s *Session, data []byte) *Task {
				s.v[iscsi.KeyImmediateData] = 1
				return s.start(write10(128, 16), data, nil, how{})
			}),
		wrongWrite("first-burst-exceeded", Should, "RFC 7143 13.14", notAsked+": immediate data above FirstBurstLength", 0, []string{"FirstBurstLength=512", "ImmediateData=Yes"},
			func(t *T, s *Session, data []byte) *Task {
				s.v[iscsi.KeyFirstBurstLength] = uint32(len(data))
				return s.start(write10(128, 16), data, nil, how{})
			}),
		wrongWrite("wrong-tag", Should, "RFC 7143 11.8.5, 11.17.1", notAsked+": the answer to an R2T with another Target Transfer Tag", 0, []string{"ImmediateData=No", "InitialR2T=Yes"},
			func(t *T, s *Session, data []byte) *Task {
				return t.wrongAnswer(s, data, func(r *iscsi.R2T) { r.TTT ^= 0x5555 })
			}),
		wrongWrite("wrong-offset", Should, "RFC 7143 11.8", notAsked+": the answer to an R2T at another offset", 0, []string{"ImmediateData=No", "InitialR2T=Yes"},
			func(t *T, s *Session, data []byte) *Task {
				return t.wrongAnswer(s, data, func(r *iscsi.R2T) { r.Offset += 512; r.Length -= 512 })
			}),
		wrongWrite("too-little", Must, "RFC 7143 11.4.7.2", "The target reports incorrect amount of data when the amount sent as a reply to an R2T does not match the amount requested", scsi.WriteErrorWrongAmount, []string{"ImmediateData=No", "InitialR2T=Yes", "ErrorRecoveryLevel=0"},
			func(t *T, s *Session, data []byte) *Task {
				return t.wrongAnswer(s, data, func(r *iscsi.R2T) { r.Length -= 512 })
			}),
		wrongDataSN("datasn-hole", 0, 2),
		wrongDataSN("datasn-twice", 0, 0),
		wrongDataSN("datasn-below", 1<<32-1),
	)
}

// wrongDataSN is a case of an answer to an R2T in equal PDUs, with these numbers.
func wrongDataSN(id string, numbers ...uint32) Case {
	return wrongWrite(id, Must, "RFC 7143 7.9", "a sequence error in Data-Out PDUs, from which nothing recovers at level 0, is no GOOD", 0, []string{"ImmediateData=No", "InitialR2T=Yes", "ErrorRecoveryLevel=0"},
		func(t *T, s *Session, data []byte) *Task {
			k := s.start(write10(128, 16), data, nil, how{hold: true})
			r := t.firstR2T(s, k)
			each := r.Length / uint32(len(numbers))
			for i, sn := range numbers {
				d := iscsi.DataOut{Final: i == len(numbers)-1, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, DataSN: sn, Offset: r.Offset + uint32(i)*each}
				p := &PDU{Data: data[d.Offset:][:each]}
				d.Put(&p.BHS)
				if s.trySend(p) != nil {
					break
				}
			}
			return k
		})
}

// firstR2T waits for the first R2T of a task.
func (t *T) firstR2T(s *Session, k *Task) iscsi.R2T {
	for len(k.r2ts) == 0 {
		if k.done {
			t.unclear("a WRITE has ended before it asked for data: %s", k.outcome())
		}
		s.later(s.nextPDU("an R2T"))
	}
	return k.r2ts[0]
}

// wrongAnswer answers the first R2T of a WRITE as it was changed.
func (t *T) wrongAnswer(s *Session, data []byte, change func(r *iscsi.R2T)) *Task {
	k := s.start(write10(128, 16), data, nil, how{hold: true})
	r := t.firstR2T(s, k)
	if r.Length <= 1024 {
		t.skip("the target asks for %d bytes at a time", r.Length)
	}
	change(&r)
	d := iscsi.DataOut{Final: true, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, Offset: r.Offset}
	p := &PDU{Data: data[r.Offset : r.Offset+r.Length]}
	d.Put(&p.BHS)
	if err := s.trySend(p); err != nil {
		t.unclear("the data could not be sent: %v", err)
	}
	return k
}

// withDigests logs in with both digests.
func (t *T) withDigests(level int) *Session {
	s := t.login(options{keys: []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C", fmt.Sprintf("ErrorRecoveryLevel=%d", level)}})
	if s.v[iscsi.KeyHeaderDigest] != iscsi.DigestCRC32C || s.v[iscsi.KeyDataDigest] != iscsi.DigestCRC32C {
		t.skip("the target does not use digests")
	}
	if s.v[iscsi.KeyErrorRecoveryLevel] != uint32(level) {
		t.skip("the target has ErrorRecoveryLevel %d", s.v[iscsi.KeyErrorRecoveryLevel])
	}
	return s
}

func digestCases() []Case {
	digests := func(header, data string) func(t *T) {
		return func(t *T) {
			s := t.login(options{keys: []string{"HeaderDigest=" + header, "DataDigest=" + data}}).ready()
			n := s.blockLen()
			s.good(s.do(read10(0, 64), nil, make([]byte, 64*n)), "READ")
			if t.o.Allow&Data != 0 {
				d := t.pattern(256 * n)
				s.good(s.do(write10(64, 256), d, nil), "WRITE")
				s.verify(64, d)
			}
			s.silence()
		}
	}
	return []Case{
		{ID: "digest.both", Source: "RFC 7143 13.1", Says: "When the initiator and target agree on a digest, this digest MUST be used for every PDU in Full Feature Phase", Over: onTCP, run: digests("CRC32C", "CRC32C")},
		{ID: "digest.header", Source: "RFC 7143 13.1", Says: "header digests may be used alone", Over: onTCP, run: digests("CRC32C", "None")},
		{ID: "digest.data", Source: "RFC 7143 13.1", Says: "data digests may be used alone", Over: onTCP, run: digests("None", "CRC32C")},
		{ID: "digest.header-wrong", Source: "RFC 7143 7.8", Says: "a PDU with a header digest error is discarded, or the connection is closed", Over: onTCP, run: func(t *T) {
			s := t.withDigests(0)
			n := iscsi.NOP{Immediate: true, ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{Data: []byte("wrong"), spoil: spoilHeader}
			n.PutOut(&p.BHS)
			s.send(p)
			for {
				q, err := s.tryReceive(t.quiet())
				if err != nil {
					return
				}
				t.require(q.BHS.ITT() != n.ITT, "a ping with a wrong header digest is answered by %v", q)
			}
		}},
		{ID: "digest.data-wrong", Source: "RFC 7143 7.8", Says: "When a target receives any PDU with a payload digest error, it MUST answer with a Reject of reason Data-Digest-Error and discard the PDU, or escalate to session recovery", Over: onTCP, run: func(t *T) {
			s := t.withDigests(0)
			n := iscsi.NOP{Immediate: true, ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{Data: []byte("wrong"), spoil: spoilData}
			n.PutOut(&p.BHS)
			s.send(p)
			why := s.rejects("a ping with a wrong data digest")
			t.require(why == 0 || why == iscsi.RejectDataDigest, "it is rejected with reason %d", why)
		}},
		{ID: "digest.data-wrong-level-1", Source: "RFC 7143 7.8", Says: "at ErrorRecoveryLevel 1 a PDU with a payload digest error is rejected with reason Data-Digest-Error, and the connection goes on", Over: onTCP, run: func(t *T) {
			s := t.withDigests(1)
			n := iscsi.NOP{Immediate: true, ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{Data: []byte("wrong"), spoil: spoilData}
			n.PutOut(&p.BHS)
			s.send(p)
			why := s.rejects("a ping with a wrong data digest")
			t.require(why == iscsi.RejectDataDigest, "reason %d (0: the connection has ended)", why)
			s.silence()
		}},
		{ID: "digest.write-wrong", Source: "RFC 7143 7.8", Says: "data with a payload digest error are not written", Need: Data, Over: onTCP, run: func(t *T) {
			s := t.withDigests(0).ready()
			n := 4 * s.blockLen()
			before := t.pattern(n)
			s.good(s.do(write10(300, 4), before, nil), "WRITE")
			k := &Task{ITT: s.nextTag(), Out: t.pattern(n)}
			k.K = iscsi.Command{Final: true, Write: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: k.ITT, EDTL: uint32(n), CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			copy(k.K.CDB[:], write10(300, 4))
			s.cmdSN++
			s.tasks[k.ITT] = k
			p := &PDU{Data: k.Out, spoil: spoilData}
			k.K.Put(&p.BHS)
			s.send(p)
			for !k.done {
				q, err := s.tryReceive(t.wait())
				if err != nil {
					break
				}
				if q.BHS.Opcode() == iscsi.OpReject {
					t.require(iscsi.ParseReject(&q.BHS).Reason == iscsi.RejectDataDigest, "it is answered by %v", q)
					break
				}
				s.taken(q)
			}
			t.require(!k.done || k.Status != scsi.Good, "a WRITE whose immediate data have a wrong digest ends with GOOD")
			t.login(options{initiator: 1}).ready().verify(300, before)
		}},
	}
}
