// Package agent is a host's subnet management agent (SMA; IBTA specification, volume 1, chapter 14): it
// answers what managers ask about the host's port, and takes a short list of Sets from them. It does no I/O
// and reads no clock.
//
// A request passes two locks. The first is who sends it: a manager, by the identity that IKE has
// authenticated; to all others the agent is silent. The second is the M_Key, with IBTA's levels of protection,
// its lease and its violations. Of the first nothing can be learned or worn out by guessing; the second is
// there for a manager that is not what it should be, and for IBTA's tools.
//
// [Agent.Handle] takes a request and returns the answer with what the host has to do:
//
//	result := a.Handle(now, from, &smp)
//	if result.Changed { save a.Saved() in a file }
//	if result.Drain != nil { let no new stream begin, or let them again }
//	if result.PKeys != nil { use these partitions alone }
//	if result.Answer != nil { send it }
//
// [Agent.Tick], called when [Agent.Next] says, ends the lease and returns the traps that are due, which go
// to the master. What is to be logged is passed to [Config.Event].
package agent
