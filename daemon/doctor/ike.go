package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
)

// Where Debian puts strongSwan's programs and plugins.
var (
	charons = []string{"/usr/sbin/charon-systemd", "/usr/lib/ipsec/charon", "/usr/libexec/ipsec/charon"}
	plugins = []string{"/usr/lib/ipsec/plugins", "/usr/libexec/ipsec/plugins", "/usr/lib64/ipsec/plugins"}
)

const (
	installStrongSwan = "apt-get install charon-systemd strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins"
	printConf         = "ironwarp doctor --strongswan-conf > /etc/strongswan.d/ironwarp.conf && systemctl restart strongswan"
)

func installed(candidates []string) string {
	for _, c := range candidates {
		if _, err := os.Stat(c); err == nil {
			return c
		}
	}
	return ""
}

// plugin reports whether a plugin of strongSwan is installed.
func plugin(name string) bool {
	for _, dir := range plugins {
		if _, err := os.Stat(filepath.Join(dir, "libstrongswan-"+name+".so")); err == nil {
			return true
		}
	}
	return false
}

func (x *examination) vici() string {
	if x.cfg != nil {
		return x.cfg.IPsec.VICI
	}
	return config.Default(x.opt.Config).IPsec.VICI
}

func (x *examination) strongSwan(ctx context.Context) {
	f := Finding{What: "strongSwan", Level: OK}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := ipsec.ProbeDaemon(ctx, x.vici())
	if err == nil {
		x.ike = &st
		f.Found = fmt.Sprintf("%s %s answers at %s, %s", st.Daemon, st.Version, st.Socket, st.DataPlane)
		x.find(f)
		return
	}
	f.Level = x.missing(x.needsIPsec())
	f.Found = err.Error()
	f.Instead = "loopback peers only"
	switch {
	case installed(charons) == "":
		f.Found = "strongSwan is not installed"
		f.Do = []string{installStrongSwan}
	case !plugin("vici"):
		f.Found = "strongSwan has no VICI plugin"
		f.Do = []string{installStrongSwan}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, ipsec.ErrDaemonPermission):
		f.Do = []string{"sudo ironwarp doctor"}
	default:
		f.Do = []string{"systemctl enable --now strongswan", "or name its VICI socket in the configuration: ipsec: {vici: unix:///path}"}
	}
	x.find(f)
}

func (x *examination) esp() {
	f := Finding{What: "ESP", Level: OK}
	err := ipsec.KernelESP()
	userland := plugin("kernel-libipsec")
	loaded := x.ike != nil && x.ike.DataPlane == ipsec.DataPlaneUserland
	switch {
	case err == nil && loaded:
		f.Level, f.Found = Warn, "the kernel has it, but strongSwan does it in user space, which is slower"
		f.Do = []string{"remove kernel-libipsec from strongSwan's configuration (/etc/strongswan.d/ironwarp.conf), then systemctl restart strongswan"}
	case err == nil:
		f.Found = "the kernel has it"
	case loaded:
		f.Found = "in user space, by strongSwan's plugin kernel-libipsec; the kernel has none"
	case userland && x.ike != nil && errors.Is(err, ipsec.ErrNoKernelESP):
		f.Level, f.Found = x.missing(x.needsIPsec()), "the kernel has none, and strongSwan has not loaded its plugin kernel-libipsec"
		f.Instead = "loopback peers only"
		f.Do = []string{"modprobe esp4 esp6 xfrm_user", "or, for userland ESP: " + printConf}
	case !errors.Is(err, ipsec.ErrNoKernelESP):
		f.Level, f.Found = Note, fmt.Sprintf("not known whether the kernel has it: %v", err)
		f.Do = []string{"sudo ironwarp doctor"}
	case userland:
		f.Level, f.Found = Note, "the kernel has none"
		f.Instead = "userland ESP by strongSwan's plugin kernel-libipsec, which is installed: it works the same, at some 250 Mbit/s"
		f.Do = []string{"modprobe esp4 esp6 xfrm_user", "or, for userland ESP: " + printConf}
	default:
		f.Level, f.Found = x.missing(x.needsIPsec()), "the kernel has none, and strongSwan's plugin kernel-libipsec is not installed"
		f.Instead = "loopback peers only"
		f.Do = []string{"modprobe esp4 esp6 xfrm_user", "or, for userland ESP: apt-get install libcharon-extra-plugins, then " + printConf}
	}
	x.find(f)
}

// guard looks at the kernel's guard policies: those that should be there, ways
// around them, and those of peers that are not configured any more.
func (x *examination) guard() {
	f := Finding{What: "kernel guard", Level: OK}
	have, err := ipsec.ListGuard("")
	if err != nil {
		f.Level, f.Found = Note, fmt.Sprintf("cannot be read: %v", err)
		f.Do = []string{"sudo ironwarp doctor"}
		x.find(f)
		return
	}
	var specs []ipsec.GuardSpec
	configured := map[netip.Addr]bool{}
	if x.cfg != nil {
		for _, p := range x.cfg.Peers {
			if p.Protection == config.ProtectIPsec {
				specs = append(specs, ipsec.GuardSpec{Remote: p.Address, Port: p.Port})
				configured[p.Address] = true
			}
		}
	}
	f.Found = fmt.Sprintf("%d policies, no peer needs one", len(have))
	if len(specs) > 0 {
		f.Found = fmt.Sprintf("%d policies for %d peers, no way around them", len(have), len(specs))
	}
	holes, err := ipsec.GuardHoles(specs...)
	if err != nil {
		holes = append(holes, ipsec.Hole{What: err.Error(), Fix: "run as root"})
	}
	if len(holes) > 0 {
		f.Level, f.Found = Fail, ""
	}
	for _, h := range holes {
		f.Found = strings.TrimPrefix(f.Found+"; "+h.What, "; ")
		if !slices.Contains(f.Do, h.Fix) {
			f.Do = append(f.Do, h.Fix)
		}
	}
	x.find(f)
	x.leftOver(have, configured)
}

func (x *examination) leftOver(have []ipsec.GuardPolicy, configured map[netip.Addr]bool) {
	if x.cfg == nil {
		return
	}
	var lost []netip.Addr
	var texts []string
	for _, p := range have {
		if !configured[p.Remote] {
			texts = append(texts, p.String())
			if !slices.Contains(lost, p.Remote) {
				lost = append(lost, p.Remote)
			}
		}
	}
	if len(lost) == 0 {
		return
	}
	x.find(Finding{
		What: "left over guard", Level: Warn, Found: "policies of hosts that are no configured peers block their clear traffic: " + strings.Join(texts, "; "),
		Do: []string{"look at them: ip xfrm policy", fmt.Sprintf("add the peer and remove it again, which takes them down: %v", lost)},
	})
}
