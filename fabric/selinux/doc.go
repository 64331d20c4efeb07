// Package selinux asks a kernel with SELinux which labels may use which RDMA partitions,
// and what label a process has. It is the other policy.Decider.
//
// The kernel has no hooks for RDMA of this kind, so this package asks as an object manager
// in user space does: class rdma_partition, permission modify, by the files of selinuxfs.
// It needs no library. Answers are kept until the policy changes, which the kernel shows
// in a page of memory.
package selinux
