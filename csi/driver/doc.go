// Package driver is IronWarp's driver for the Container Storage Interface: the services that an orchestrator such as Kubernetes
// calls to make volumes, to give them to its nodes, and to mount them there.
//
// It holds no state of the volumes: it translates calls to the control API of this host's daemon, and those for other storage hosts the
// daemon passes on over the protected streams, if the pool there lets this host manage it.
//
//	CreateVolume             a volume of a pool, empty or with the contents of a snapshot or volume
//	ControllerPublishVolume  a lease: the node's IKE identity may attach the export
//	NodeStageVolume          the node's daemon attaches it; format and mount, unless it is for raw block
//	NodePublishVolume        a bind mount into the pod
//	ControllerUnpublish...   a fence: it answers when nothing of the node can be written any more
//
// The attachment belongs to the node's daemon, not to this program: a plugin that is restarted or upgraded ends no I/O. What a node
// has staged is written down in a file for each volume (record.go), so that it can be undone after a restart.
//
// Section numbers in the comments are those of the CSI specification 1.13's headings, by their names.
package driver
