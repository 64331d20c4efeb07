// Package rnbd exports block devices and attaches remote ones, over sessions of
// package rtrs: the RDMA Network Block Device of Linux (RNBD), adapted.
//
// A Server has exports by name, each with a backing disk, a mode, and a list of peers
// that may open it; peers are known by the identity that IKE authenticated. A Client has
// one session with a server and opens Disks there, each of which is a block.Device. When
// the path to the server is lost, I/O waits; when it is back the disks are opened again,
// and what was in flight is sent again. Writes to the same bytes are sent one after the
// other, so that a resent write never overwrites what was acknowledged since. A disk that
// the server cannot open yet keeps waiting and retries.
//
// # Wire format
//
// Messages are user headers of rtrs requests, little-endian, with the layouts of Linux's
// RNBD 2.2; differences are marked (*), and make it version 3. Each starts with a u16
// type and a u16 0. Those with an answer are rtrs reads, and the answer is their data.
//
//	0 SESS_INFO  4 u8 version | 5 u8 minor version (*) | 6 zero[30]
//	                                                 answer: type 1, the same
//	2 OPEN       4 u8 access (0 ro, 1 rw, 2 migration) | 5 u8 flags (*; 1: writer) | 6 name[255] |
//	             261 u24 device id wanted (*), 0: any |
//	             264 disk[16] (*), 0: any | 280 attachment[16] (*) |
//	             296 life[16] (*), 0: none
//	3 its answer 4 u32 device | 8 u64 sectors | 16 u32 max I/O | 20 u32 max write
//	             zeroes | 24 u32 max discard | 28 u32 discard granularity |
//	             32 u32 discard alignment | 36 u16 physical, 38 u16 logical block |
//	             40 u16 max segments | 42 u16 secure discard | 44 u8 rotational |
//	             45 u8 cache policy (1 FUA, 2 write-back) | 46 u8 flags (*; 1:
//	             read-only, 2: kept, 4: writer) | 47 zero[9] | 56 disk[16] (*) |
//	             72 life[16] (*) | 88 u8 result (*) | 89 u8 length of the text |
//	             90 text[118]
//	4 IO         4 u32 device | 8 u64 sector | 16 u32 operation and flags |
//	             20 u32 bytes | 24 u16 priority 0 | 26 zero[6]
//	5 CLOSE      4 u32 device
//	6 LIST (*)   4 u32 index of the first export wanted
//	7 its answer 4 u32 number of entries | 8 u32 index of the next, 0 at the end |
//	             entries {u64 sectors, u8 flags, u8 length, name}
//	8 GROWN (*)  4 u32 index of the first entry wanted
//	9 its answer 4 u32 number of entries | 8 u32 index of the next, 0 at the end |
//	             entries {u32 device, u32 0, u64 sectors}, of devices that have grown
//	             since they were opened
//
// Each end names the newest version that it speaks. They speak the lower minor version of both,
// so that what a minor version adds is used where both have it. A client of another major
// version learns that of the server, and is answered nothing else.
//
// Sectors have 512 bytes, limits are in sectors, block sizes in bytes.
// Operations are 0 read, 1 write, 2 flush, 3 discard, 5 write zeroes, 16 cache (*), 17 block
// status (*); flags bit 8 sync, 9 FUA, 11 no-unmap, 16 fast zero (*). Others are refused with
// EOPNOTSUPP, and the server's log says what was asked for: 4 secure erase, since a file
// system or a disk may keep copies (so secure discard is 0), and bit 10 preflush, for which a
// client sends a flush. Where a server is too old for what has a (*), there is no fast zero,
// a hint has no effect, and all is data. The priority is a hint that a page cache has no use
// for: 0 is sent, and any is accepted. RNBD's queues for polling are the client's own affair,
// and do not show on the wire. A read of n bytes is an rtrs read of n bytes, block status one
// of block.StatusLen, every other operation an rtrs write.
//
// A client chooses the ids of its devices itself, so that resent I/O still names its
// device after that was reopened. It never reuses an id, so that late I/O of a closed
// disk finds no device. A device that is being closed takes no more I/O, and is gone when
// the I/O it had has ended: until then CLOSE fails with EBUSY, and the client retries.
// OPEN with the id of an open device closes that first, and fails likewise.
//
// OPEN fails with ENOENT for an export that does not exist and EACCES for one that the
// peer may not open; LIST shows only those it may open. Other refusals are results in the
// answer, with a text: 1 the export's storage is not open yet, 2 another has it open for
// writing, 3 it is not the disk that was asked for, 4 its storage has lost acknowledged
// writes, 5 it has had another writer since, 6 the attachment was fenced; the latter
// describes the device as if it were open. 0 is success.
//
// Version 3.1 has GROWN and access mode 2. An export may grow while it is open: clients ask for
// that every five seconds, and those of a server that speaks 3.0 learn the size when they open
// again.
//
// # Which disk, and which life of it
//
// An export has the UUID of its disk, which stays with the storage, and a life: an
// identity that changes whenever acknowledged writes not covered by a flush may have been
// lost, like the write verifier of NFS (RFC 8881 section 18.3.3). A client with such
// writes names the life that acknowledged them in OPEN. If the answer has another life
// and is not marked as kept, the writes may be lost: all I/O of that disk fails from then
// on, so that no flush succeeds that should have covered them. The attachment identifies
// a disk across lost sessions and restarts of the client: if a disk has one writer, an
// attachment takes over from itself in an earlier session.
//
// # Who may write
//
// A client that is let in as a writer has a token: its attachment, which the server
// remembers over restarts. The answer says so, and the client repeats it when it opens the
// disk again. Meanwhile another writer may have been let in, whose writes no earlier write
// may overwrite: of an export with one writer its token then replaces the other, and who
// claims a token that is void is refused. A client that claims none is let in whenever
// nobody else is there.
//
// An administrator may fence a host (Server.Fence): its tokens are void, and the disk has a
// new generation, which is stored before anything else happens. I/O of its sessions is
// refused with EPERM, which no other I/O of a writable device has; what was at the storage
// has ended when the fence is answered. The client fails all I/O of the disk with EPERM from
// the first refusal on, over lost sessions and restarts, until it is opened without a claim.
package rnbd
