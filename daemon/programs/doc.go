// Package programs vouches for the flows of programs of this host's users, which carry RDMA streams in processes of their
// own (`ironwarp run`): who may have them, with whom, at which ports; what they count against; and how they end.
//
// What a program says by its control connection is a wish. Its socket is what the kernel knows, the kernel's guard stops
// what no SA covers, and a flow that is shut down here is over in every process that has its socket.
package programs
