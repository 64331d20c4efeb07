// Package ibsimnet speaks the socket protocol of ibsim, a simulator of InfiniBand fabrics, from both ends.
//
// A [Client] sits at a node of ibsim's network and sends MADs of its own to opensm there: so opensm is an oracle of what
// IronWarp's directory and managers do. A [Server] takes ibsim's place: programs that Debian's libumad2sim has open its sockets
// in place of /dev/infiniband (saquery, sminfo, smpquery, ibaddr) reach what IronWarp puts behind it.
//
// The sockets are Unix datagram sockets in the abstract namespace, named after IBSIM_SOCKNAME: NAME:ctl answers
// control messages; a client's packets go from its NAME:inID to the server's NAME:outN, where N is the client's number.
//
// libumad2sim passes on one MAD of 256 bytes at a time and knows nothing of RMPP, which for a real device is the kernel's
// part. So stock programs show what fits in one MAD, one service or three paths; and opensm's longer answers arrive
// cut off. [PreloadRMPP] puts the segments together between libumad2sim and a program, and then tables of any length are shown.
package ibsimnet
