package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	name       = "ironwarp"
	rdmaSuffix = "-rdma" // of the package with the libraries of `ironwarp run`
	maintainer = "IronWarp contributors <ironwarp@users.noreply.github.com>"
	homepage   = "https://github.com/ironwarp/ironwarp"
	summary    = "userspace RNIC, and a secure block link between hosts"
	text       = `IronWarp joins hosts over a network that none of them trusts: a disk of one
host appears on another, carried by RDMA (RDMAP over DDP over MPA/TCP or SCTP)
inside IPsec that strongSwan sets up. It needs no RDMA hardware.`
	rdmaSummary = "RDMA programs without an adapter, over IronWarp"
	rdmaText    = `The libraries with which "ironwarp run" has programs of libibverbs and
librdmacm run on IronWarp, without an RDMA adapter and without a kernel module.`
)

// described is a package, in the formats in which it is built.
type described struct {
	info    nfpm.Info
	stage   string
	formats []format
	mine    func(path string) bool // what of the stage is in it, without a slash in front
	links   map[string]string      // symbolic links, by their paths
}

// format is what differs between deb and rpm.
type format struct {
	name                 string
	depends              []string
	recommends, suggests []string
	scripts              bool // it has those in packaging/scripts
	leave                func(path string) bool
	overrides            bool // lintian's
}

// main describes the package with the program.
func (b *build) main(stage, arch string) *described {
	return &described{
		info: b.info(name, arch, summary, text), stage: stage,
		mine: func(path string) bool { return !forRDMA(path) },
		formats: []format{
			{
				name: "deb", scripts: true, overrides: true,
				// README's own list, and the IKE daemon's other package, which needs swanctl for VICI.
				depends:    []string{"charon-systemd (>= 5.9) | strongswan-starter (>= 5.9)", "strongswan-swanctl (>= 5.9)", "libstrongswan-standard-plugins"},
				recommends: []string{"kmod", "udev"},
				suggests:   []string{"ironwarp-rdma", "libcharon-extra-plugins", "libstrongswan-extra-plugins"},
				leave:      func(path string) bool { return under(path, "usr/share/licenses") },
			},
			{
				name: "rpm", scripts: true,
				depends:    []string{"strongswan >= 5.9", "systemd"},
				recommends: []string{"kmod"},
				suggests:   []string{"ironwarp-rdma"},
				leave: func(path string) bool {
					return under(path, "etc/needrestart") || strings.HasPrefix(path, docDir+"/changelog.")
				},
			},
		},
	}
}

// forRDMA tells which files the package with the libraries has.
func forRDMA(path string) bool {
	return under(path, libraries) || path == docDir+"/"+name+rdmaSuffix+".cdx.json"
}

// rdmaPackage describes the package with the libraries of `ironwarp run`. They have the private symbols of the libibverbs
// of the distribution on which they are built, so they are packaged for that one alone.
func (b *build) rdmaPackage(stage, arch string) (*described, error) {
	libs, err := filepath.Glob(filepath.Join(stage, libraries, "*.so*"))
	if err != nil || len(libs) == 0 {
		return nil, fmt.Errorf("there are no libraries in %s: %w", filepath.Join(stage, libraries), err)
	}
	libc, err := libcNeeded(libs...)
	if err != nil {
		return nil, err
	}
	d := &described{
		info: b.info(name+rdmaSuffix, arch, rdmaSummary, rdmaText), stage: stage,
		mine: forRDMA,
		// The same version of the other package is there, and with it the licences.
		links: map[string]string{"/usr/share/doc/" + name + rdmaSuffix: name},
	}
	d.info.Section = "net"
	if _, err := os.Stat("/etc/debian_version"); err == nil {
		d.formats = []format{{name: "deb", depends: []string{fmt.Sprintf("%s (= %s)", name, b.version), "libc6 (>= " + libc + ")"},
			suggests: []string{"perftest", "rdmacm-utils", "ibverbs-utils"}}}
	} else {
		d.formats = []format{{name: "rpm", depends: []string{fmt.Sprintf("%s = %s-%s", name, b.version, rpmRelease), "glibc >= " + libc}}}
	}
	return d, nil
}

// rpmRelease tells packages of one version apart; a version is packaged once.
const rpmRelease = "1"

func (b *build) info(name, arch, summary, text string) nfpm.Info {
	return nfpm.Info{
		Name: name, Arch: arch, Platform: "linux", Version: b.version, VersionSchema: "none", MTime: b.date, DisableGlobbing: true,
		Section: "net", Priority: "optional", Maintainer: maintainer, Vendor: "IronWarp", Homepage: homepage, License: "Apache-2.0",
		Description: summary + "\n" + text,
		Overridables: nfpm.Overridables{RPM: nfpm.RPM{
			BuildHost: "reproducible", Summary: summary, Group: "System Environment/Daemons", Packager: maintainer, Compression: "gzip:9",
		}, Deb: nfpm.Deb{Compression: "gzip:9"}},
	}
}

// write writes a package in each of its formats.
func (b *build) write(d *described) error {
	for _, f := range d.formats {
		info := d.info
		contents, err := b.contents(d, f)
		if err != nil {
			return err
		}
		info.Contents, info.Depends, info.Recommends, info.Suggests = contents, f.depends, f.recommends, f.suggests
		if f.name == "rpm" {
			info.Release = rpmRelease
			info.Description = strings.SplitN(info.Description, "\n", 2)[1] // the summary is a field of its own
		}
		if f.scripts {
			at := func(file string) string { return filepath.Join(b.top, "packaging/scripts", file) }
			info.Scripts = nfpm.Scripts{PostInstall: at("postinst"), PreRemove: at("prerm"), PostRemove: at("postrm")}
		}
		if err := b.pack(&info, f.name); err != nil {
			return fmt.Errorf("%s of %s: %w", f.name, info.Name, err)
		}
	}
	return nil
}

// pack has nfpm write a package.
func (b *build) pack(info *nfpm.Info, format string) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	file := packager.ConventionalFileName(info)
	info.Target = filepath.Join(b.out, file)
	w, err := os.Create(info.Target)
	if err != nil {
		return err
	}
	if err := packager.Package(info, w); err != nil {
		w.Close()
		return err
	}
	b.written = append(b.written, file)
	return w.Close()
}

// contents lists what a package holds: what is its own of the stage.
func (b *build) contents(d *described, f format) (files.Contents, error) {
	var all files.Contents
	err := filepath.WalkDir(d.stage, func(full string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(d.stage, full)
		if err != nil || path == "." {
			return err
		}
		if !d.mine(path) || f.leave != nil && f.leave(path) {
			return nil
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		c := &files.Content{Source: full, Destination: "/" + path, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: st.Mode().Perm(), MTime: b.date}}
		switch {
		case st.IsDir() && owned(path):
			c.Source, c.Type = "", files.TypeDir
		case st.IsDir():
			return nil
		case !st.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		case under(path, "etc"):
			c.Type = files.TypeConfigNoReplace
		case f.name == "rpm" && under(path, "usr/share/licenses"):
			c.Type = files.TypeRPMLicense
		case f.name == "rpm" && (under(path, docDir) || under(path, "usr/share/man")):
			c.Type = files.TypeRPMDoc
		}
		all = append(all, c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for path, to := range d.links {
		all = append(all, &files.Content{Source: to, Destination: path, Type: files.TypeSymlink, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", MTime: b.date}})
	}
	if f.overrides {
		c := &files.Content{Source: filepath.Join(b.top, "packaging/lintian", d.info.Name), Destination: "/usr/share/lintian/overrides/" + d.info.Name,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o644, MTime: b.date}}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is nothing for the package in %s", d.stage)
	}
	return all, nil
}

// owned tells whether a directory is the package's own.
func owned(path string) bool {
	return filepath.Base(path) == name || under(path, docDir)
}
