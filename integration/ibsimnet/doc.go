// Package ibsimnet speaks the socket protocol of ibsim, a simulator of InfiniBand fabrics, from both ends.
//
// A [Client] sits at a node of ibsim's network and sends MADs of its own to opensm there: so opensm is an oracle of what
// IronWarp's directory and managers do. A [Server] takes ibsim's place: programs that Debian's libumad2sim has open its sockets
// in place of /dev/infiniband (saquery, sminfo, smpquery, ibaddr) reach what IronWarp puts behind it.
//
// The sockets are Unix datagram sockets in the abstract namespace, named after IBSIM_SOCKNAME: NAME:ctl answers
// control messages; a client's packets go from its NAME:inID to the server's NAME:outN, where N is the client's number.
//
// libumad2sim (0.10, as Debian has it, to 0.12) passes on one MAD at a time, of which it drops the last 32 bytes, and knows nothing of RMPP,
// which for a real device is the kernel's part. So stock programs show what fits in 168 bytes, one service but for its last
// number or two paths, and opensm's longer answers arrive cut off. [Segments] makes a library that passes on whole MADs and puts segments together;
// with it programs show tables of any length.
package ibsimnet
