// Package rtrs carries block I/O between two hosts over RDMA: the RDMA
// Transport of Linux (RTRS), adapted to iWARP.
//
// A client has a session with a server. The session has one or several paths, all of which
// carry I/O as the client's policy has it, and each path has several connections (QPs),
// over which its I/O is spread. For each path the server reserves a set of memory chunks,
// one per I/O in flight; the client pushes requests into them with RDMA Writes and
// announces each with an immediate (RFC 7306 section 6).
//
// # Wire format
//
// All fields are little-endian. The structures, magic numbers and flags are those of
// Linux's RTRS; differences are marked (*), and give the protocol version the major
// number 0x4A. Immediates are 64 bits long on iWARP; Linux's "RDMA Write with Immediate"
// is an RDMA Write followed by an Immediate Data message.
//
// Each connection starts with a 56-byte request in the private data of its start-up and a
// 56-byte answer:
//
//	CON_REQ:  0 u8 0, u8 0 | 2 u16 magic 0x1BBD | 4 u16 version | 6 u16 cid |
//	          8 u16 cid_num | 10 u16 recon_cnt | 12 path uuid | 28 session uuid |
//	          44 u8 flags (1: first connection of the session) | 45 zero |
//	          48 u64 incarnation (*; recon_cnt is its low 16 bits)
//	CON_RSP:  0 u16 magic | 2 u16 version | 4 u16 errno | 6 u16 queue_depth |
//	          8 u32 max_io_size | 12 u32 max_hdr_size | 16 u32 flags
//	          (2: a fresh STag comes with each response) | 20 zero
//
// The version is a major number in the high byte and a minor one in the low byte. A client
// names the newest version that it speaks, and the server answers with that or an older one
// of the same major number that it speaks, which holds for the path, and which the path's other
// connections name; so what a minor version adds is used where both ends have it. Whoever
// knows nothing of a newer minor version ignores its flags. Another major number is refused
// with EPROTONOSUPPORT and the server's version. A client steps down to that if it is an older
// minor one of its own.
//
// A refusal is a rejection in start-up that carries a CON_RSP with its errno. When all
// connections are up, the client sends INFO_REQ on connection 0 and gets INFO_RSP:
//
//	INFO_REQ: 0 u16 type 0 | 2 name[255] | 257 zero[15]
//	INFO_RSP: 0 u16 type 1 | 2 u16 sg_cnt | 4 u16 errno (*) | 6 zero[2] |
//	          8 epoch (*), drawn by the server when it began the session |
//	          24 sg_cnt times {u64 TO, u32 STag, u32 length}, one for each chunk
//
// From then on only immediates are sent untagged. Their low 32 bits are a 4-bit type and
// a 28-bit payload:
//
//	0 IO_REQ   chunk id in the topmost bits.Len(queue_depth-1) bits of the
//	           payload, below it the offset of the message in the chunk
//	1 IO_RSP   9-bit errno, 19-bit chunk id; with always_invalidate the high
//	           32 bits are the chunk's new STag (*; no RKEY_RSP is needed)
//	8 HB_MSG   heartbeat
//	9 HB_ACK   its answer
//	10 BYE     the client ends the session (*)
//
// A request is one RDMA Write and its immediate. The chunk holds the data (or, for a
// read, as many unwritten bytes), then the user's header, then, at the immediate's
// offset, the message:
//
//	WRITE: 0 u16 type 2 | 2 u16 usr_len | 4 u32 number (*)
//	READ:  0 u16 type 3 | 2 u16 usr_len | 4 u16 flags 0 | 6 u16 sg_cnt 1 |
//	       8 {u64 TO, u32 STag, u32 length} | 24 u32 number (*)
//
// The server answers a read with an RDMA Write of exactly length bytes to that
// STag, then IO_RSP; errors and writes with an IO_RSP alone. An answer comes on
// the connection of its request.
//
// # Rules
//
//   - The server looks at a request only after it has revoked the chunk's STag, and names
//     a new one in the response (RFC 5042 section 6.2.2 and appendix A). Without
//     always_invalidate it does not revoke, and trusts the client with its chunks.
//   - Chunk i belongs to connection i mod cid_num (*): requests in it come on that
//     connection, and on others its STag is invalid (RFC 5042 section 6.1.1). Servers
//     whose trust model shares protection domains among streams do not enforce this.
//   - The client opens a window to exactly the bytes of a read while the read is in
//     flight, and closes it before anybody looks at the data (RFC 5042 sections 6.2.2,
//     6.3.3 and 6.3.4). Neither side lets the other read its memory.
//   - A client that breaks the protocol loses its path, and the session if it has no other.
//   - Either side sends a heartbeat on each connection (*) that received nothing for an
//     interval, and gives up the path when several intervals brought no answer. Intervals
//     in which the connection's security association was down do not count.
//   - A path that is lost comes up again with a greater incarnation. Its I/O goes on by
//     another path meanwhile, in the order of its posting, or waits for one. So does I/O on
//     a path whose security association has been away for two seconds while there is
//     another path; that path is not torn down.
//
// # Each write at most once (*)
//
// A permit of the client's is a slot at the server, on the model of NFSv4.1 (RFC 8881
// section 2.10.6.1): chunk i of each path is slot i's. A client numbers the requests of a
// slot, and gives one that it sends again, by whichever path, the same number. It sends no
// other before that one is answered. The server executes a greater number than the slot's
// last; answers the same one, if it was a write, with the result of its execution, once
// that has ended; executes a read again, unless that is under way; and answers a smaller
// one with ESTALE, which came late by a path that the client has left. So no write is
// executed twice, or after a later one to its block was acknowledged, and nothing waits for
// a path to die: failing over takes as long as noticing, and one round trip.
//
// I/O that has failed because there was no path for too long (ClientConfig.NoPath) may be
// executed, or under way in a socket somewhere. Its permit does nothing else before it is
// settled: by whichever path is up first the client sends the number again, as a write of
// nothing, with an empty header, which the server's user does not see. A server that has had
// the write answers when it has ended; one that gets it later answers it as it does any number
// that it knows. A control request that has lost its path, while there is another, is made void
// by the slot's next number, with nothing to write either.
//
// What a path may still send from, or have the server write to, is its own memory: I/O that
// goes on by another path takes that path's memory, with a copy of what it writes.
//
// A server remembers a session that has lost all of its paths for a while (Linger), with
// what it has open. A session whose client says BYE is over, and one that another of the
// same name takes the place of. When a session is over and its requests have ended, the
// server forgets it; a client that comes back then finds another epoch, introduces itself
// anew (OnConnect) and sends again what was not answered. Only there can a write that was
// executed, and whose answer was lost, be executed a second time.
//
// All paths must lead to the same server: where INFO_RSP has another epoch than so far
// while another path is alive, the path is refused.
//
// # Trust
//
// A session needs no trust in anybody; of RFC 5042's trust models, NS-NT is the default:
//
//	NS-NT  a protection domain for each connection, all memory in it for that one, and
//	       over SCTP an association
//	NS-RT  the same; the server may leave chunks open (ServerConfig.TrustClients)
//	S-NT   as NS-NT
//	S-LT   one protection domain for a session, and over SCTP one association for all
//	       sessions with a host: fewer of them are taken
//	S-T    the same; the server may leave chunks open
package rtrs
