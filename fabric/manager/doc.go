// Package manager is what the managers of a fabric agree by on one master among them (IBTA specification,
// volume 1, section 14.4), by SMInfo, OpenSM's priorities and the SM_Key. It does no I/O and reads no clock.
//
// Managers are those that the configuration names, so there is nothing to discover: each asks every other for
// its SMInfo in each interval, with the M_Key of that one's port, and knows all the time who is there, as what.
// A manager is higher than another by its priority or, where that is equal, by the lower GUID.
//
//	m.Tick(now)           when m.Next() says: what to send, each to one manager
//	m.ServeSMInfo(...)    answers others' requests; agent.Config.SM takes m
//	m.Receive(...)        takes others' answers
//	m.Trap(...)           takes the traps of hosts' agents
//
// Identity comes first here as well: what comes from a host that is no manager by IKE's identity is ignored
// before a key in it is looked at.
package manager
