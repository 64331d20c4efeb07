// Package vhost offers a block.Device to a virtual machine monitor, such as QEMU or
// cloud-hypervisor, as the disk of a guest: the back end of vhost-user-blk. The monitor, here
// the front end, connects to a Unix socket and shares the guest's memory; requests are taken
// from the guest's rings, and data is placed in the guest's memory, without the monitor.
//
// Messages are those of QEMU's docs/interop/vhost-user.rst; rings and requests those of virtio
// 1.2, sections 2.7, 2.8 and 5.2: split and packed rings, tables of descriptors, the event
// index, several queues, and IN, OUT, FLUSH, GET_ID, DISCARD and WRITE_ZEROES.
//
// # Order and succession
//
// One front end is served at a time. What it had submitted before it vanished has ended before
// anything begins that the next one asks for. The front end keeps the log of requests under
// way (GET_INFLIGHT_FD), so that a monitor that connects again, to this process or to one that
// comes after it, has each of them carried out: those whose end it has not seen are carried out
// again, in the order in which they were taken.
//
// # Copies
//
// What a guest reads from a block.TargetIO, such as a remote disk's, is placed in the guest's
// memory as it comes, by the goroutine that receives from the peer, after its CRC has been
// verified: the peer's RDMA Write names the memory region that the device has for the request,
// and the region has the guest's memory for its target. That region's own memory stays unused
// until the target is taken away, while the STag remains valid: what a path brings that the
// read has left, or that comes when the front end is gone, goes there. Nothing is placed in the
// guest's memory after the request has ended. A read that fails, or takes more than one path,
// may have changed the guest's memory before its end, as with any disk.
//
// Data that is written is copied once, to the device's buffers: it could not be sent from the
// guest's memory, as a guest that changes it meanwhile would spoil the stream's CRC.
//
// The kernel may have to find a page of the guest's memory first, and a goroutine that receives
// for others, too, waits for that. Where such waits take more than a tenth of the time, reads of
// this disk are copied from the device's buffers by the front end's own goroutine until that is
// made up for; a read of which a part has been placed is repeated.
//
// # A hostile front end
//
// A front end can spoil its own disk and nothing else. Memory is mapped only from memfd, tmpfs
// and hugetlbfs files; its size is checked, it is sealed against shrinking where the kernel
// lets us, and every access is guarded: where a file was truncated all the same, the access
// fails and not the process. Addresses, lengths and indices are read once, checked, and then
// used. A front end that breaks the protocol or a ring is ended, and the log says why. Two
// goroutines of each queue touch its memory, and those that place what is read.
package vhost
