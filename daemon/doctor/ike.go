package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/profile"
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
	st, err := ike.Probe(ctx, x.vici())
	if err == nil {
		x.ike = &st
		f.Found = fmt.Sprintf("%s %s answers at %s", st.Daemon, st.Version, st.Socket)
		x.addFinding(f)
		x.dataPlane()
		x.algorithms(ctx)
		return
	}
	f.Level = x.levelOfMissing(x.needsIPsec())
	f.Found, _, _ = strings.Cut(err.Error(), ";") // what to do follows
	f.Instead = "loopback peers only"
	switch {
	case installed(charons) == "":
		f.Found = "strongSwan is not installed"
		f.Do = []string{installStrongSwan}
	case !plugin("vici"):
		f.Found = "strongSwan has no VICI plugin"
		f.Do = []string{installStrongSwan}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, charon.ErrPermission):
		if g, denied := asRoot(f.What, err); denied {
			f = g
		}
	default:
		f.Do = []string{"systemctl enable --now strongswan", "Or name its VICI socket in the configuration: `ipsec: {vici: unix:///path}`."}
	}
	x.addFinding(f)
}

// plane is who does ESP: the configuration decides.
func (x *examination) plane() esp.Plane {
	plane := esp.Auto
	if x.ike != nil {
		plane = x.ike.DataPlane
	}
	if x.cfg != nil {
		if want, err := esp.ParsePlane(x.cfg.IPsec.DataPlane); err == nil && want != esp.Auto {
			plane = want
		}
	}
	return plane
}

// dataPlane reports who does ESP, and why.
func (x *examination) dataPlane() {
	plane, reason := x.plane(), x.ike.Reason
	f := Finding{What: "data plane", Level: OK}
	if plane != x.ike.DataPlane {
		f.Level = Warn
		f.Do = []string{"Set `ipsec: {data_plane: auto}` in the configuration, unless strongSwan is about to be changed."}
		reason = fmt.Sprintf("the configuration says so; by itself it would be %v: %s", x.ike.DataPlane, reason)
	}
	f.Found = fmt.Sprintf("%v: %s", plane, reason)
	if err := esp.ProbeKernel(); plane == esp.Kernel && errors.Is(err, esp.ErrNoKernel) {
		f.Level, f.Found = x.levelOfMissing(x.needsIPsec()), "strongSwan leaves ESP to the kernel, and this kernel has none"
		f.Do = espAdvice()
	}
	if plane == esp.Userland {
		f.Found += "; tunnel mode, ESP in UDP, no extended sequence numbers"
	}
	x.addFinding(f)
}

// algorithms finds what strongSwan lacks for the profiles.
func (x *examination) algorithms(ctx context.Context) {
	f := Finding{What: "algorithms", Level: OK}
	have, err := ike.ProbeAlgorithms(ctx, x.vici())
	if err != nil {
		f.Level, f.Found = Note, err.Error()
		x.addFinding(f)
		return
	}
	profiles, used := map[string]*profile.Profile{}, map[string]bool{}
	for _, name := range profile.Names() {
		if p, err := profile.ByName(name); err == nil {
			profiles[name] = p
		}
	}
	for _, p := range x.ipsecPeers() {
		if p.Resolved != nil {
			profiles[p.Resolved.Name], used[p.Resolved.Name] = p.Resolved, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		lacks, usable := have.Lacks(profiles[name], x.plane())
		switch what := fmt.Sprintf("of profile %s strongSwan lacks %s", name, strings.Join(lacks, ", ")); {
		case !usable && used[name]:
			f.fault(Fail, what+", and without them no proposal is left", loadPlugins...)
		case !usable:
			f.fault(Note, what+", and without them it cannot be used", loadPlugins...)
		case len(lacks) > 0:
			f.fault(Note, what+"; its other proposals do", loadPlugins...)
		}
	}
	if f.Level == OK {
		f.Found = fmt.Sprintf("strongSwan has all of the profiles %s", strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
	}
	x.addFinding(f)
}

// loadPlugins brings the plugins that have algorithms.
var loadPlugins = []string{
	"apt-get install libstrongswan-standard-plugins libstrongswan-extra-plugins",
	"If strongswan.conf has a list `load =`, add the plugin there (openssl, gcm, xcbc, gmp, curve25519).",
}

// espAdvice is the advice that leads to kernel ESP, or with further commands to userland ESP.
func espAdvice(userland ...string) []string {
	do := []string{"modprobe esp4 esp6 xfrm_user", "Where the kernel has no such modules, ESP in user space does, by what follows."}
	return append(append(do, userland...), printConf)
}

func (x *examination) esp() {
	f := Finding{What: "ESP", Level: OK}
	err := esp.ProbeKernel()
	userland := plugin("kernel-libipsec")
	loaded := x.ike != nil && x.ike.DataPlane == esp.Userland
	switch {
	case err == nil && loaded:
		f.Level, f.Found = Warn, "the kernel has it, but strongSwan does it in user space, which is slower"
		f.Do = []string{"Remove kernel-libipsec from strongSwan's configuration (/etc/strongswan.d/ironwarp.conf), then run `systemctl restart strongswan`."}
	case err == nil:
		f.Found = "the kernel has it"
	case loaded:
		f.Found = "in user space, by strongSwan's plugin kernel-libipsec; the kernel has none"
	case userland && x.ike != nil && errors.Is(err, esp.ErrNoKernel):
		f.Level, f.Found = x.levelOfMissing(x.needsIPsec()), "the kernel has none, and strongSwan has not loaded its plugin kernel-libipsec"
		f.Instead = "loopback peers only"
		f.Do = espAdvice()
	case !errors.Is(err, esp.ErrNoKernel):
		f.Level, f.Found = Note, fmt.Sprintf("not known whether the kernel has it: %v", err)
		if g, denied := asRoot(f.What, err); denied {
			f = g
		}
	case userland:
		f.Level, f.Found = Note, "the kernel has none"
		f.Instead = "userland ESP by strongSwan's plugin kernel-libipsec, which is installed: it works the same, at some 250 Mbit/s"
		f.Do = espAdvice()
	default:
		f.Level, f.Found = x.levelOfMissing(x.needsIPsec()), "the kernel has none, and strongSwan's plugin kernel-libipsec is not installed"
		f.Instead = "loopback peers only"
		f.Do = espAdvice("apt-get install libcharon-extra-plugins")
	}
	x.addFinding(f)
}
