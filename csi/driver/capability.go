package driver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// File systems that a node makes and mounts.
const (
	ext4 = "ext4" // the default
	xfs  = "xfs"
)

// use is how a volume is used, as a VolumeCapability says.
type use struct {
	block    bool // raw, without a file system
	fsType   string
	flags    []string // of the mount
	readOnly bool     // whoever has it reads only
	shared   bool     // several nodes write
	alone    bool     // one pod alone has it
}

// parseUse reads a capability. It fails for one that this driver has not; the error is the reason.
func parseUse(c *csi.VolumeCapability) (u use, err error) {
	switch {
	case c.GetBlock() != nil:
		u.block = true
	case c.GetMount() != nil:
		m := c.GetMount()
		switch u.fsType = m.GetFsType(); u.fsType {
		case "":
			u.fsType = ext4
		case ext4, xfs:
		default:
			return u, fmt.Errorf("file system %q is not one of ext4 and xfs", u.fsType)
		}
		if u.flags = m.GetMountFlags(); len(u.flags) > maxFlags {
			return u, fmt.Errorf("%d mount flags; %d are allowed", len(u.flags), maxFlags)
		}
		for _, f := range u.flags {
			if err := checkFlag(f); err != nil {
				return u, fmt.Errorf("mount flag %q: %w", f, err)
			}
		}
		if m.GetVolumeMountGroup() != "" {
			return u, errors.New("a group of the mount is not supported: the orchestrator changes the owner")
		}
	default:
		return u, errors.New("the capability says neither block nor mount")
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		u.alone = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.readOnly = true
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if u.shared = true; !u.block {
			return u, errors.New("several nodes cannot write to one ext4 or xfs: only raw block volumes are for MULTI_NODE_MULTI_WRITER")
		}
	default:
		return u, fmt.Errorf("access mode %v is not supported", mode)
	}
	return u, nil
}

// parseUses reads the capabilities of a volume, of which there has to be one at least. It fails as parseUse does.
func parseUses(list []*csi.VolumeCapability) (uses []use, err error) {
	if len(list) == 0 {
		return nil, errors.New("no volume capability was given")
	}
	for _, c := range list {
		u, err := parseUse(c)
		if err != nil {
			return nil, err
		}
		uses = append(uses, u)
	}
	return uses, nil
}

// checkFlag returns why an option of mount(8) is refused: it has to be one option of the file system, and none that has mount do
// something else than mount the volume.
func checkFlag(f string) error {
	name, _, _ := strings.Cut(f, "=")
	switch {
	case f == "" || len(f) > maxFlag:
		return fmt.Errorf("it has %d bytes; 1 to %d are allowed", len(f), maxFlag)
	case strings.ContainsFunc(f, func(r rune) bool { return r <= ' ' || r == ',' || r > '~' }) || f[0] == '-':
		return errors.New("one option was expected, in ASCII without spaces or commas")
	case name == "bind" || name == "rbind" || name == "remount" || name == "move" || name == "loop" || name == "offset" || name == "helper" || name == "uhelper",
		strings.HasPrefix(name, "X-") || strings.HasPrefix(name, "x-"):
		return errors.New("this option is not one of the file system")
	case (name == "suid" || name == "dev"):
		return errors.New("a volume is mounted with neither devices nor set-user-ID programs of its own")
	}
	return nil
}
