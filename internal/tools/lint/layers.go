package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

const module = "github.com/ironwarp/ironwarp"

// layers is the order of the project's packages, top first. A package may
// import only packages of later groups. An entry covers the directories
// below it unless they have an entry of their own; packages under one entry
// may import each other.
var layers = [][]string{
	{"csi"}, // a module of its own
	{"bench"},
	{"integration"},
	{"cmd/ironwarp", "rdmalib/rnic"},
	{"daemon"},
	{"daemon/web"}, // a client of the control API
	{"daemon/attach", "daemon/carrier", "daemon/sas", "daemon/export", "daemon/volumes", "daemon/targets", "daemon/subsystems", "daemon/blocklist", "daemon/metrics", "daemon/audit", "daemon/doctor", "daemon/programs", "daemon/directory", "daemon/names", "daemon/capture"}, // rooms: none knows another
	{"daemon/local", "daemon/probe", "daemon/manage", "daemon/device", "daemon/listen", "daemon/handover"},
	{"daemon/config", "daemon/meter", "daemon/repeats"},
	{"daemon/api"},
	{"rdmatest"},
	{"iscsi/libiscsitest"},
	{"iscsitest"},
	{"iscsi/target", "nvme/target"}, // neither knows the other
	{"iscsi/tcp", "iser", "scsi/lu", "nvme/nvmetest"}, // rooms of iscsi/target: none knows another
	{"iscsi/initiator"},
	{"nbd", "vhost", "rnbd"}, // they meet in block.Device
	{"block/backing", "block/gate"},
	{"nvme"},
	{"block"},
	{"iscsi", "scsi"},
	{"chap"},
	{"iwarptest/agent"},
	{"rtrs", "rping", "rdmalib", "fabric/gsi", "iwarptest/conformance"}, // each runs over verbs
	{"verbs"},
	{"iwarptest"},
	{"rdmap"},
	{"mpa", "ddp/sctpadapt"},
	{"ddp/enhanced", "ddp/tap"},
	{"ddp"},
	{"fabric/manager"},
	{"fabric/agent"},
	{"fabric/conf"},
	{"ipsec"},
	{"ipsec/ike"},
	{"ipsec/negotiation"},
	{"ipsec/pad", "ipsec/flow", "ipsec/invite"},
	{"ipsec/guard", "ipsec/profile", "ipsec/charon", "ipsec/lanestate", "ipsec/auth"},
	{"ipsec/esp", "ipsec/pki"},
	{"transport/delegate"},
	{"verbs/verbstest"}, // an in-memory network, for tests of the packages above
	{"transport"},
	{"transport/ksctp", "transport/sctp"}, // they meet in assoc.Association
	{"transport/assoc"},
	{"fabric/selinux"},
	{"fabric/partition"},
	{"fabric/policy"},
	{"fabric/sa"},
	{"fabric/mad"},
	{"internal"},
	{"internal/tools"},
}

// layerOf returns the entry that covers dir (relative to the module) and its rank, 0 at
// the top.
func layerOf(dir string) (entry string, rank int, ok bool) {
	for i, group := range layers {
		for _, e := range group {
			if (dir == e || strings.HasPrefix(dir, e+"/")) && len(e) > len(entry) {
				entry, rank, ok = e, i, true
			}
		}
	}
	return entry, rank, ok
}

// pkg is the part of `go list -json` that the check needs.
type pkg struct {
	ImportPath string
	Imports    []string
}

// modules are the folders of the modules whose packages have a layer.
var modules = []string{".", "csi", "internal/tools/packages"}

func listImports() (pkgs []pkg, err error) {
	for _, dir := range modules {
		of, err := listModule(dir)
		if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, of...)
	}
	return pkgs, nil
}

func listModule(dir string) ([]pkg, error) {
	cmd := exec.Command("go", "list", "-C", dir, "-json=ImportPath,Imports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var pkgs []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return pkgs, nil
}

// relative returns the directory of one of the module's packages.
func relative(importPath string) (dir string, ours bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// checkLayers finds entries that cover no package.
func checkLayers(pkgs []pkg) (found []finding) {
	covers := map[string]bool{}
	for _, p := range pkgs {
		if dir, ours := relative(p.ImportPath); ours {
			entry, _, _ := layerOf(dir)
			covers[entry] = true
		}
	}
	for _, group := range layers {
		for _, e := range group {
			if !covers[e] {
				found = append(found, finding{"internal/tools/lint/layers.go", 0, fmt.Sprintf("names %s, where there is no package", e)})
			}
		}
	}
	return found
}

// mapFile has a table of the packages, in the order of the layers.
const mapFile = "docs/architecture.md"

// checkMap finds packages that stand in the wrong place of the table in mapFile, and those
// that are missing from it.
func checkMap(file string, src []byte) (found []finding) {
	shown := map[string]bool{}
	last, above := "", 0
	for i, line := range strings.Split(string(src), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 2 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(cells[1], -1) {
			entry, rank, ok := layerOf(m[1])
			switch {
			case !ok:
				continue
			case rank < above:
				found = append(found, finding{file, i + 1, fmt.Sprintf("%s stands below %s, which it may import", m[1], last)})
			}
			shown[entry], last, above = true, m[1], rank
		}
	}
	for _, group := range layers {
		for _, e := range group {
			if !shown[e] && e != "internal/tools" {
				found = append(found, finding{file: file, text: e + " is missing from the table of packages"})
			}
		}
	}
	return found
}

// tls finds TLS and DTLS in an import path.
var tls = regexp.MustCompile(`(^|/)[a-z-]*tls([/.-]|$)`)

func checkImports(pkgs []pkg) []finding {
	var found []finding
	for _, p := range pkgs {
		dir, ours := relative(p.ImportPath)
		if !ours {
			continue
		}
		from, fromRank, ok := layerOf(dir)
		if !ok {
			found = append(found, finding{dir, 0, "is in no layer: give it a place in internal/tools/lint/layers.go"})
			continue
		}
		for _, imp := range p.Imports {
			if tls.MatchString(imp) {
				found = append(found, finding{dir, 0, "imports " + imp + ": nothing layers TLS under or over RDMAP (RFC 5042 section 5.4.2)"})
			}
			to, ours := relative(imp)
			if !ours {
				continue
			}
			toEntry, toRank, ok := layerOf(to)
			if ok && toEntry != from && toRank <= fromRank {
				found = append(found, finding{dir, 0, fmt.Sprintf("imports %s, which stands above or beside it; imports point down only", to)})
			}
		}
	}
	return found
}
