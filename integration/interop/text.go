package main

// The fixed parts of docs/interop.md.
const (
	documentHead = `# Interoperation

` + "`make interop ARGS=-whole`" + ` wrote this. It boots a virtual machine and runs IronWarp against Linux' soft-iWARP (siw), both on its two ends of a virtual
wire, and two IronWarps with the kernel's ESP or its SCTP between them. Linux %s; kernel and siw from Debian's packages %s.

A capture of the wire is a witness beside the two ends. Outside of the virtual machine it is put together again and the CRC of every
FPDU is computed afresh. What we sent has to be right; a stream that brought a wrong CRC must have been ended; and where a case failed
because siw had put a wrong CRC on the wire, it is run again, at most twice, and its row says so.

## rping

siw with rping of librdmacm, IronWarp with ` + "`ironwarp rping`" + `, which speaks the same protocol. A ping moves its payload by an RDMA
Read and back by an RDMA Write, with Sends in between. A row is ok when %d pings came back whole: both ends printed the same texts,
the client compared them byte by byte, and our end saw the stream end as it should. The capture has to show the MPA start-up that
the row names: revision, CRC, and in the peer-to-peer model the first message that was agreed on.

`
	suiteHead = `
## Conformance suite

The cases of iwarptest/conformance, with package verbs at one end and at the other a program on librdmacm and libibverbs
(integration/siw/agent). Each case runs twice: once with our end as the one that acts, once with siw's. Those that depend on how segments
travel run over every start-up, the others over one of each direction.

`
	sectionHead = `
What the cases are about, by the section of the RFC. "siw can't" names what siw would have to have for the cases that were not run.

`
	quirks = `
## What siw lacks or does in its own way

- Lacks: Atomics and Immediate Data (RFC 7306); markers, and it refuses a peer that asks for them; memory windows; Reads into a list; the
  peer-to-peer model with a zero-length Send as first message.
- It answers a Read of no bytes that waits behind another Read with bytes of that other Read's source. IronWarp ends such a stream.
- It answers Reads of memory that it has not given the right for.
- A Send with Invalidate of what it can't invalidate completes its receive with an error, and the stream goes on; an STag may be
  invalidated twice.
- A work request whose list has an empty element before the last makes its kernel follow a null pointer. The suite leaves such elements
  out at siw's end.
- Reads do not complete in the order of posting: what is posted behind a Read completes when TCP has taken it (RFC 5040 section 5.5 rule 15).
- As an MPA responder it does not ask for the CRC that it was told to require.
- Work that is posted when the stream has just ended may be refused and complete all the same, complete twice, or never.
- A completion queue that is armed for solicited completions only is not woken by a Send with Solicited Event.
- It finds a wrong CRC in an FPDU whose padding and CRC come in two TCP segments, and ends the stream (siw_get_trailer puts the second part
  where the first was). The streams inside ESP go without CRC.
- Padding of FPDUs is not always zero (RFC 5044 section 4.1): bytes of the socket's buffer leak.
- libsiw sends the remote key of a Write as the STag of a Send with Invalidate, and refuses a receive without an element; completions
  say neither that they are solicited nor which STag was invalidated, and nothing tells how a stream ended.
`
	open = `
## Open

On a host with five times as many runnable threads as processors one row in about a hundred once ended with a wrong CRC in an FPDU
that siw had sent: the RDMA Write of the first ping, of 60000 bytes. It has not come back: 9,000 such Writes on 1,500 new connections,
at seven times as many threads as processors, were all right at our end, and so were the 388,518 FPDUs of the capture. One way for it to happen is in siw's source:
while one CPU is sending a work request, an acknowledgement that makes room in the socket lets siw's own thread go on with the same
work request on another (siw_qp_llp_write_space, siw_sq_resume; both hold the queue pair's lock for reading only), and the CRC is summed
up in state that they share. Should it come back, the capture decides who was wrong.
`
	terminateHead = `
### Its Terminates

The bit fields of the Terminate Control are swapped: layer and type change places, and so do the bits M, D and R. IronWarp sends what RFC
5040 section 4.8 says and reads both. Codes are in part others than the RFC's: a lack of rights is reported as an invalid STag, a Send that
is too long as the lack of a receive. "DDP Segment Length" is that of the payload alone.

| what we did | on the wire | what siw means |
| --- | --- | --- |
%s`
)
