// Package directory is this host's part in a fabric: a member, which tells the directory what this host offers, asks it what others
// do and hears of events; and, on the hosts that the configuration names as managers, the directory itself (package sa), the
// election of its master (package manager) and the host's end of the management keys (package agent).
//
//	                 ┌ Member: requests, registrations, events ─ port ─ link ┐
//	Directory ───────┤                                                       ├ a stream inside ESP
//	                 └ Keeper: sa.Server, election ───────────── port ─ link ┘
//
// The directory tells and never decides. What it says is used to choose among the peers of the configuration,
// by the GUIDs of the identities that IKE authenticates; who may attach what is up to each host.
package directory
