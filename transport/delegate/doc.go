// Package delegate is a transport.Protector that asks another process: a program's flows are protected by the daemon of
// its host, which sees each flow's socket.
//
// Client is the program's side, a Serving the daemon's; both ends of one Unix connection. What the program says of a flow
// counts for nothing that the kernel can tell: the daemon gets the socket (SCM_RIGHTS) and asks the kernel what it is.
//
//	program                                     daemon
//	  ports (flow), prepare (flow)          ->    the guard and the SA, for as long as it dials
//	  admit (direction, socket)             ->    what covers the flow; a duplicate of its socket
//	                                        <-    ended (why): the flow has been shut down
//	  done                                  ->    of a call that has returned, or of a flow that is over
//
// When the connection ends the flows end, unless it is the daemon that ends. A program outlives its daemon: its flows stay
// under the kernel's guard, and are declared again when a daemon is back.
//
// A message is a JSON object behind its length in four bytes, the most significant first.
package delegate
