package daemon

import (
	"os"
	"strings"
)

// mtuProbing is the kernel's packetization layer path MTU discovery for TCP (RFC
// 4821): 0 is off, 1 is for connections whose long segments get lost, 2 is always.
// There is no such option of a socket.
const mtuProbing = "/proc/sys/net/ipv4/tcp_mtu_probing"

// probeMTU turns it on where it is off. Within an SA a stream learns nothing of a
// path that is narrower than its ends: the routers' ICMP is about ESP, and TCP
// would send the same long segments for ever.
func (d *Daemon) probeMTU() {
	b, err := os.ReadFile(mtuProbing)
	if err != nil || strings.TrimSpace(string(b)) != "0" {
		return
	}
	if err := os.WriteFile(mtuProbing, []byte("1"), 0); err != nil {
		d.log.Warn("streams over TCP will stand still on a path whose MTU is smaller than its ends' and that does not say so: sysctl net.ipv4.tcp_mtu_probing=1", "error", err)
		return
	}
	d.log.Info("TCP finds out the MTU of paths by itself from now on", "net.ipv4.tcp_mtu_probing", 1, "was", 0)
}
