// Package volumes makes volumes on pools of a host's storage: files in a directory, or thin volumes of LVM. A volume is an export by
// itself, which a peer may attach once it has been published to it; it can be made larger while it is in use, snapshotted, and begin with
// the contents of another one.
//
// Each volume has a record in the state directory, which says what is being done with it before that is begun, so that a daemon that was
// killed leaves nothing half made: what was being made is taken away again, and what was being removed is gone, when the next
// one looks at the pool (recover.go).
//
//	        Create, Snapshot                 Remove
//	(none) -----------------> creating -> ready -------> removing -> (none)
//	                             \______________ recovery ______________^
//
// The contents of a volume belong to who uses it. Nothing here reads them, and what is in a pool without a record of ours is never
// touched.
package volumes
