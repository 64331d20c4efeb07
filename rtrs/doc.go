// Package rtrs carries block I/O between two hosts over RDMA: the RDMA
// Transport of Linux (RTRS), adapted to iWARP.
//
// A client has a session with a server. The session has one path at a time, and the path
// has several connections (QPs), over which I/O is spread. The server reserves a set of
// memory chunks for the client, one per I/O in flight; the client pushes requests into
// them with RDMA Writes and announces each with an immediate (RFC 7306 section 6).
//
// # Wire format
//
// All fields are little-endian. The structures, magic numbers and flags are those of
// Linux's RTRS; differences are marked (*), and give the protocol version the major
// number 0x49. Immediates are 64 bits long on iWARP; Linux's "RDMA Write with Immediate"
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
// A refusal is a rejection in start-up that carries a CON_RSP with its errno. When all
// connections are up, the client sends INFO_REQ on connection 0 and gets INFO_RSP:
//
//	INFO_REQ: 0 u16 type 0 | 2 name[255] | 257 zero[15]
//	INFO_RSP: 0 u16 type 1 | 2 u16 sg_cnt | 4 u16 errno (*) | 6 zero[2] |
//	          8 sg_cnt times {u64 TO, u32 STag, u32 length}, one for each chunk
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
//
// A request is one RDMA Write and its immediate. The chunk holds the data (or, for a
// read, as many unwritten bytes), then the user's header, then, at the immediate's
// offset, the message:
//
//	WRITE: 0 u16 type 2 | 2 u16 usr_len
//	READ:  0 u16 type 3 | 2 u16 usr_len | 4 u16 flags 0 | 6 u16 sg_cnt 1 |
//	       8 {u64 TO, u32 STag, u32 length}
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
//   - A peer that breaks the protocol loses the session's path, nothing else.
//   - Either side sends a heartbeat on each connection (*) that received nothing for an
//     interval, and gives up the path when several intervals brought no answer. Intervals
//     in which the connection's security association was down do not count.
//   - When a path ends, I/O waits at the client, which reconnects with a greater
//     incarnation and resends it in the order of its posting. The server accepts the new
//     incarnation only when each request of the earlier one has ended at its handler:
//     nothing is executed late. So I/O that was sent but is no longer wanted ends when
//     the next path is up, not earlier.
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
