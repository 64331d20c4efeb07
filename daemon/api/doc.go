// Package api is the daemon's control API: HTTP with JSON bodies on a Unix
// socket, its types, and the client that the command line uses.
//
//	GET    /v1/info                          who answers
//	GET    /v1/status                        everything at once
//	POST   /v1/reload                        read the configuration again
//	GET    /v1/peers           POST          list, add (PeerSpec)
//	GET    /v1/peers/NAME      DELETE        show, remove
//	GET    /v1/peers/NAME/exports            what the peer offers to this host; in ?partition=
//	POST   /v1/peers/NAME/paths              add a path of sessions (Path)
//	DELETE /v1/peers/NAME/paths/PATH         remove one
//	GET    /v1/sessions                      block sessions with their paths
//	POST   /v1/sessions/policy               spread their I/O in another way, or have it fail without a path (PolicyRequest)
//	POST   /v1/sessions/path                 take a path down, or up again (PathRequest)
//	GET    /v1/exports         POST          list, add (ExportSpec)
//	DELETE /v1/exports/NAME                  remove
//	GET    /v1/pools                         pools of storage; those of ?peer=, as all that follow
//	GET    /v1/pools/NAME                    show one
//	GET    /v1/volumes         POST          volumes and snapshots; make a volume (VolumeCreate)
//	GET    /v1/volumes/NAME    DELETE        show, remove
//	POST   /v1/volumes/NAME/expand           make it larger (VolumeExpand)
//	POST   /v1/volumes/NAME/snapshot         keep what it holds now (VolumeSnapshot)
//	POST   /v1/volumes/NAME/publish          let a peer attach it (VolumePublish)
//	POST   /v1/volumes/NAME/unpublish        fence a peer from it (VolumeUnpublish)
//	POST   /v1/volumes/NAME/qos              limit its I/O (QoS)
//	GET    /v1/targets         POST          iSCSI targets; add (TargetSpec)
//	GET    /v1/targets/NAME    PATCH DELETE  show, change (TargetChange), remove
//	POST   /v1/targets/NAME/luns             add a LUN (LUNSpec)
//	DELETE /v1/targets/NAME/luns/NUMBER      remove one
//	GET    /v1/iscsi/sessions                sessions of initiators
//	DELETE /v1/iscsi/sessions/ID             end one
//	POST   /v1/iscsi/discover                ask a peer's portal for its targets (DiscoverRequest)
//	GET    /v1/attachments     POST *        list, attach (AttachRequest)
//	DELETE /v1/attachments/PEER/EXPORT       detach; of ?ulp=
//	GET    /v1/sas             DELETE        child SAs; delete those of ?peer= (&child=)
//	GET    /v1/ike             DELETE        IKE SAs with their children (of ?peer=); delete those of ?peer=
//	POST   /v1/sas/rekey                     make new keys (SARequest)
//	POST   /v1/ike/rekey                     make new keys (SARequest)
//	POST   /v1/sas/watch *                   what happens to SAs, until the caller disconnects
//	GET    /v1/partitions                    partitions, their members, and who of this host is of them
//	GET    /v1/ulps                          local users of the daemon
//	GET    /v1/resources                     who uses how much of the RNIC
//	GET    /v1/streams                       RDMA streams
//	DELETE /v1/streams/ID                    end one
//	GET    /v1/blocks          POST          peers that are kept out; keep one out (BlockRequest)
//	DELETE /v1/blocks/PEER                   let one in again
//	GET    /v1/captures        POST          captures that run; begin one (CaptureRequest), whose file is the answer
//	DELETE /v1/captures/ID                   end one
//	GET    /v1/fabric                        this host's part in a fabric
//	GET    /v1/fabric/services               the directory's services (of ?name=)
//	GET    /v1/fabric/paths                  hosts that the directory has
//	GET    /v1/fabric/subscriptions          who hears of which events; on a manager, as the next three
//	GET    /v1/fabric/guids                  alias GUIDs
//	GET    /v1/fabric/groups                 members of multicast groups
//	GET    /v1/fabric/drops                  whose requests were dropped in silence
//	POST   /v1/fabric/keys                   make new management keys (FabricKeyRequest); on a manager, as the next
//	POST   /v1/fabric/drain                  have a host take no new streams, or take them again (FabricDrainRequest)
//	POST   /v1/ping *                        RDMA round trips (PingRequest)
//	POST   /v1/bench *                       a short benchmark (BenchRequest)
//
// The kernel reports who connects. Root, the daemon's own user and privileged ULPs may
// make all calls, but for captures, which root alone may begin and end. Other ULPs may ask for info, status, ulps, resources, streams, peers
// and their exports, and attach, detach and ping, each for what is its own.
//
// The calls marked * answer with one JSON object per line: any number of
// Events with progress, then one with a result or an error. Every other failure
// is an Error with a fitting HTTP status. Secrets never pass this interface: a
// PeerSpec names the file that holds one.
package api
