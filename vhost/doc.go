// Package vhost offers a block.Device to a virtual machine monitor, such as QEMU or
// cloud-hypervisor, as the disk of a guest: the back end of vhost-user-blk. The monitor, here
// the front end, connects to a Unix socket and shares the guest's memory; requests are taken
// from the guest's rings, and data is placed in the guest's memory, without the monitor.
//
// Messages are those of QEMU's docs/interop/vhost-user.rst; rings and requests those of virtio
// 1.2, sections 2.7, 2.8 and 5.2: split and packed rings, tables of descriptors, the event
// index, several queues, and IN, OUT, FLUSH, GET_ID, DISCARD and WRITE_ZEROES.
//
// # Order, and who comes after
//
// One front end is served at a time. What it had submitted before it vanished has ended before
// anything begins that the next one asks for. The front end keeps the log of requests under
// way (GET_INFLIGHT_FD), so that a monitor that connects again, to this process or to one that
// comes after it, has each of them carried out: those whose end it has not seen are carried out
// again, in the order in which they were taken.
//
// # Copies
//
// Data is copied once between the device's buffers and the guest's memory, which is not
// registered with the RNIC. A write could not be sent from there, as a guest that changes it
// meanwhile would spoil the stream's CRC. A read could be placed there only if its memory could
// be taken from an open STag without closing it: while a request goes on by another path, or
// when its front end is gone, what the old path still brings has to go elsewhere, and a closed
// STag would end that path, which other disks use.
//
// # A hostile front end
//
// A front end can spoil its own disk and nothing else. Memory is mapped only from memfd, tmpfs
// and hugetlbfs files; its size is checked, it is sealed against shrinking where the kernel
// lets us, and every access is guarded: where a file was truncated all the same, the access
// fails and not the process. Addresses, lengths and indices are read once, checked, and then
// used. Whoever breaks the protocol or a ring is ended, which the log says in words. Two
// goroutines of each queue touch its memory and nobody else does.
package vhost
