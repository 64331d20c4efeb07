package guard

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/transport"
)

// datagramSockets are the connected UDP sockets of a link on a kernel whose sock_diag knows no
// UDP (CONFIG_INET_UDP_DIAG), which cannot end them either.
func datagramSockets(g Spec) (out []LinkSocket, err error) {
	for _, name := range []string{"udp", "udp6"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list UDP sockets: %w", err)
		}
		out = append(out, parseDatagramSockets(g, string(b))...)
	}
	return out, nil
}

// parseDatagramSockets reads proc_net_udp(5).
func parseDatagramSockets(g Spec, text string) (out []LinkSocket) {
	for line := range strings.Lines(text) {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		state, err := strconv.ParseUint(f[3], 16, 8)
		local, ok1 := hexAddrPort(f[1])
		remote, ok2 := hexAddrPort(f[2])
		if err != nil || state != tcpEstablished || !ok1 || !ok2 || !g.has(local, remote) {
			continue
		}
		out = append(out, LinkSocket{Protocol: transport.ProtoUDP, Local: local, Remote: remote, State: tcpStates[tcpEstablished], Orphan: f[9] == "0"})
	}
	return out
}

// hexAddrPort reads an address as the kernel prints it: 32-bit words in the order of its memory.
func hexAddrPort(s string) (a netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(s, ":")
	b, err1 := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err1 != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return a, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), true
}
