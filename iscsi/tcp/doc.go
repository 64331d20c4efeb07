// Package tcp moves iSCSI's PDUs and data over a TCP connection, with header and data digests: it is
// the iscsi.Datamover where there is no RDMA, and the iscsi.Stream of the login before.
//
// What it receives goes from the socket into the buffer that it is for; only what came along with a
// header is copied. What it sends is not copied: headers, padding and digests are built beside the
// data, and many PDUs leave in one system call. Nothing is allocated for a PDU.
package tcp
