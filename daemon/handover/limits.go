package handover

const (
	// maxClients bounds the clients that are kept, each with two descriptors, to what ironwarp.service allows the store
	// (FileDescriptorStoreMax=512).
	maxClients = 256
	// maxState is the longest state of a client in bytes: 64 KiB that it has sent, in base64, and some names.
	maxState = 128 << 10
)
