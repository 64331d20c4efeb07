// Package lanestate decides what a child SA of a peer needs: when it is brought up, ended
// or made anew, and when the streams that it carries are paused and go on. RFC 5042 5.4.5
// and RFC 7146 3 ask that the deletion of a phase 2 SA pauses a stream and never ends it;
// the next traffic brings up another SA.
//
// A Lane is a state machine without I/O, lock or clock. Next is its transition function:
// the state, an event and the time go in, the next state and an Effect come out. What the
// machine has to know of streams it asks for (Effect.Ask), since each answer costs a system
// call a stream. Package ipsec carries out what the effects say, and reports what came of it.
package lanestate
