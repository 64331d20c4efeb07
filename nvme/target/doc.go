// Package target is an NVM subsystem over RDMA: hosts connect to it with NVMe over Fabrics, as Linux' nvme-rdma does.
//
// A Server has subsystems by their names, and one more that everybody may ask which of them there are. A subsystem has
// namespaces, each on a storage. A host's connections are queues: the first is the admin queue of a controller that is
// made for it, the others are I/O queues of that controller. Commands come in Sends; what a host reads is written to
// its memory by RDMA Writes, and what it writes comes in the capsule or is fetched by RDMA Reads; a response is a Send,
// which ends the host's key if the command says so. Hosts have no right to any of the target's memory.
//
// A host has one controller in a subsystem. When it comes again, from the same address, the controller that it had ends
// first, with all that it has at the storage: what it wrote before it was cut off does not come after what it writes
// now. It may not come by a second way meanwhile.
package target
