// Package mad is the codec of InfiniBand's management datagrams (MADs; IBTA specification, volume 1,
// chapters 13 to 16): what managers, the subnet administrator (SA), agents and their clients say to each
// other. It holds no state but that of one RMPP transfer, does no I/O and reads no clock.
//
// One RDMAP Send carries one [Packet]: a GRH and a MAD of 256 bytes. The MAD's first 24 bytes are its
// [Header], whose Class says how the rest is laid out:
//
//	packet, err := mad.ParsePacket(b)
//	switch packet.MAD.Class() {
//	case mad.ClassSubnAdm:
//		sa, err := mad.ParseSA(&packet.MAD)
//		record, err := mad.ParseServiceRecord(sa.Data[:mad.ServiceRecordLen])
//	case mad.ClassSubn, mad.ClassSubnDirected:
//		smp := mad.ParseSMP(&packet.MAD)
//		info, err := mad.ParsePortInfo(smp.Data[:])
//	}
//
// Each attribute has a constant for its length in bytes, a Parse function that wants exactly that many,
// and a method Append. All numbers are in host order, reserved bits are sent as zero and ignored. Values
// are not judged here: a Parse function fails for a wrong length or version alone.
//
// An answer with several records, or longer than one MAD, is cut into segments by a [Sender] and put
// together by a [Receiver] (RMPP, section 13.6). Its records are put one behind the other by [AppendRow]
// and found again by [Rows].
//
// What GRH and MAD say about their sender (SGID, LIDs in records) is a claim. Who sent a packet is known
// from the authenticated peer of its stream.
package mad
