package invite

// settlement is how two hosts that have compared codes come to have each other as peers, or not: a state
// machine without I/O or clock, at both of them. Inviter on the left, joiner on the right; each may end at
// any time by lost, an Abort or its people's no, keeping nothing, but where it says otherwise.
//
//	asking                                         asking
//	  | both confirmed: write                        | both confirmed
//	writing                                        awaiting
//	  | own half written: send Written  ----->       | write
//	settling                                       writing
//	  |              <-----  own half written: send Written
//	  |                                            settling: lost or Abort: undo
//	  | send Done    ----->                          | keep, send Bye
//	leaving: lost: keep, and say that              ended
//	  |  the joiner may not  <-----
//	ended: keep
//
// Before it has the joiner's Written, the inviter undoes its half. So whatever is lost, both keep their halves or
// neither does, unless what is lost is the inviter's Done or what follows it; then the inviter says so.
type settlement struct {
	role         role
	state        state
	mine, theirs bool // have confirmed
	outcome      Outcome
}

type state int

const (
	asking state = iota
	awaiting
	writing
	settling
	leaving
	ended
)

// event is what happens to a settlement.
type event int

const (
	agreed      event = iota // this host's people
	declined                 // these, too
	confirm                  // the message
	wrote                    // the own half
	writeFailed              // which was undone already
	written                  // the message
	done                     // the message
	bye                      // the message
	abort                    // the message
	lost                     // the connection, or patience
)

// step is what has to be done now.
type step struct {
	send  kind // 0: nothing
	write bool
	undo  bool
}

// Outcome is how an exchange has ended.
type Outcome int

// The outcomes. But for Kept and KeptUnsure this host has nothing of the peer.
const (
	Unsettled  Outcome = iota
	Kept               // both hosts have each other as peers
	KeptUnsure         // this host has the other; whether that has this one is not known
	Declined           // by this host's people
	Aborted            // by the other host: its people have declined, or it could not write its half
	Failed             // this host could not write its half
	Lost               // the other host is gone, or did not answer in time
)

func (s *settlement) end(o Outcome, p step) step {
	s.state, s.outcome = ended, o
	return p
}

// on is the state machine. An event that its state does not expect is as if the connection were lost.
func (s *settlement) on(e event) step {
	switch {
	case s.state == ended:
		return step{}
	case e == abort || e == lost:
		return s.cutOff(e)
	case s.state == asking:
		return s.onAnswer(e)
	case s.state == awaiting && e == written:
		s.state = writing
		return step{write: true}
	case s.state == writing && e == wrote:
		s.state = settling
		return step{send: kindWritten}
	case s.state == writing && e == writeFailed:
		return s.end(Failed, step{send: kindAbort})
	case s.state == settling && s.role == inviter && e == written:
		s.state = leaving
		return step{send: kindDone}
	case s.state == settling && s.role == joiner && e == done:
		return s.end(Kept, step{send: kindBye})
	case s.state == leaving && e == bye:
		return s.end(Kept, step{})
	}
	return s.cutOff(lost)
}

// onAnswer is on while people are asked.
func (s *settlement) onAnswer(e event) step {
	var p step
	switch {
	case e == declined:
		return s.end(Declined, step{send: kindAbort})
	case e == agreed && !s.mine:
		s.mine, p.send = true, kindConfirm
	case e == confirm && !s.theirs:
		s.theirs = true
	default:
		return s.cutOff(lost)
	}
	switch {
	case !mayWrite(s.mine, s.theirs):
	case s.role == joiner:
		s.state = awaiting
	default:
		s.state, p.write = writing, true
	}
	return p
}

// cutOff ends without the other host.
func (s *settlement) cutOff(e event) step {
	o := Lost
	if e == abort {
		o = Aborted
	}
	switch {
	case s.state == leaving && e == lost:
		return s.end(KeptUnsure, step{})
	case s.state == settling || s.state == leaving:
		return s.end(o, step{undo: true})
	}
	return s.end(o, step{})
}
