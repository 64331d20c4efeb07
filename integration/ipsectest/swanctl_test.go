package ipsectest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// swanctlConf is what an administrator without IronWarp would write into
// swanctl.conf: one child for all TCP between two hosts.
type swanctlConf struct {
	local, remote     netip.Addr
	localID, remoteID string
	mode              profile.Mode
	start             string // start_action
	priority          int    // of the policies; 0: what strongSwan computes
	key               auth.Secret
}

const swanctlChild = "all-tcp"

func (f swanctlConf) conf() string {
	priority := ""
	if f.priority > 0 {
		priority = "priority = " + strconv.Itoa(f.priority)
	}
	return fmt.Sprintf(`connections {
  by-hand {
    version = 2
    local_addrs = %v
    remote_addrs = %v
    proposals = aes128gcm16-prfsha256-ecp256, aes128-sha256-modp2048
    local {
      auth = psk
      id = %s
    }
    remote {
      auth = psk
      id = %s
    }
    children {
      %s {
        local_ts = dynamic[6]
        remote_ts = dynamic[6]
        esp_proposals = aes128gcm16-ecp256-esn-noesn, aes128-sha256-modp2048
        mode = %v
        start_action = %s
        %s
      }
    }
  }
}
secrets {
  ike-by-hand {
    id-1 = %[3]s
    id-2 = %[4]s
    secret = 0s%[9]s
  }
}
`, f.local, f.remote, f.localID, f.remoteID, swanctlChild, f.mode, f.start, priority, base64.StdEncoding.EncodeToString(f.key.Reveal()))
}

// load loads the configuration into the host's charon, as its administrator would.
func (f swanctlConf) load(t *testing.T, h *lab.Host) {
	t.Helper()
	file := filepath.Join(h.Dir(), "swanctl.conf")
	if err := os.WriteFile(file, []byte(f.conf()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := swanctl(t, h, "--load-all", "--file", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// swanctl runs strongSwan's command in a host.
func swanctl(t *testing.T, h *lab.Host, args ...string) (string, error) {
	t.Helper()
	// By default it would load every plugin.
	conf := filepath.Join(h.Dir(), "swanctl-strongswan.conf")
	if err := os.WriteFile(conf, []byte("swanctl {\n  load = random nonce openssl\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(t.Context(), "swanctl", append(args, "--uri", "unix:///run/charon.vici")...)
	cmd.Env = append(os.Environ(), "STRONGSWAN_CONF="+conf)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("swanctl %s on %s: %w", strings.Join(args, " "), h.Name(), err)
	}
	return out.String(), err
}
