// Package delegate is a transport.Protector that asks another process: a program's flows are protected by the daemon of
// its host, which sees each flow's socket.
//
// Client is the program's side, a Serving the daemon's; both ends of one Unix connection. What the program says of a flow
// counts for nothing that the kernel can tell: the daemon gets the socket (SCM_RIGHTS) and asks the kernel what it is.
//
//	program                                     daemon
//	  ports (flow), prepare (flow)          ->    the guard and the SA, for as long as it dials
//	  admit (direction, socket, will)       ->    what covers the flow; a duplicate of its socket
//	                                        <-    ended (why): the flow has been, or is to be, shut down
//	  done                                  ->    of a call that has returned, or of a flow that is over
//	                                        <-    lane: an association's SA is away, or back
//	  report                                ->    what an association has carried, and what waits
//
// When the connection ends the flows end, unless it is the daemon that ends. A program outlives its daemon: its flows stay
// under the kernel's guard, and are declared again when a daemon is back.
//
// A message is a JSON object behind its length in four bytes, the most significant first.
//
// # SCTP in UDP
//
// A flow is a TCP connection or an SCTP association in UDP, and the daemon has to be able to end one and no other. One UDP
// socket could carry several associations, of which the daemon would see nothing: to end one it would depend on the program,
// and could otherwise only end all of them. So each association has a UDP socket of its own, connected to its peer
// (transport.Config.OwnSockets), and is to the kernel as much as a connection is: getpeername says with whom it is,
// shutdown(2) ends it in every process, and sock_diag finds it for a guard that is about to go. What that costs: a file and a
// reader for each association, and before Linux 6.13, which hashes connected UDP sockets by both ends, each packet to a
// listener's port looks through the sockets of that port.
//
// The kernel knows nothing of what such a socket's peer has acknowledged. The program reports that when it changes, and the
// daemon says when the SA is away, so that the program sends again patiently (Association). Only the program can tell the peer of
// the end; so it is asked to, has EndTime for it, and leaves a packet that does it (its will) with the daemon, for when it is
// killed or does not answer.
package delegate
