// Package nvme is NVM Express over Fabrics without I/O: commands and completions, the structures of Identify, log
// pages, features, reservations, and the private data of connections over RDMA.
//
// The sections that its comments cite are those of NVM Express Base Specification 1.4 (NVMe), of NVMe over Fabrics
// 1.1 (NVMe-oF), and of the latter's RDMA transport binding, section 7.3. All of them are little-endian.
package nvme
