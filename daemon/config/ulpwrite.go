package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// ulpFile is a ULP as ulps.d holds it: only what differs from the default.
type ulpFile struct {
	Name       string        `yaml:"name"`
	Users      []string      `yaml:"users,omitempty,flow"`
	Groups     []string      `yaml:"groups,omitempty,flow"`
	Privileged bool          `yaml:"privileged,omitempty"`
	Peers      []string      `yaml:"peers,omitempty,flow"`
	Exports    []string      `yaml:"exports,omitempty,flow"`
	Ports      []string      `yaml:"ports,omitempty,flow"`
	Transport  Transport     `yaml:"transport,omitempty"`
	Listen     bool          `yaml:"listen,omitempty"`
	Partition  string        `yaml:"partition,omitempty"`
	Label      string        `yaml:"label,omitempty"`
	Trust      Trust         `yaml:"trust,omitempty"`
	Limits     yaml.MapSlice `yaml:"limits,omitempty,flow"`
}

func fileOfULP(u ULP) ulpFile {
	f := ulpFile{Name: u.Name, Users: u.UserNames(), Groups: u.GroupNames(), Privileged: u.Privileged, Peers: sorted(u.Peers), Exports: sorted(u.Exports), Transport: u.Transport, Listen: u.Listen, Partition: u.Partition, Label: u.Label, Trust: u.Trust}
	ports := slices.Clone(u.Ports)
	slices.SortFunc(ports, comparePortBlocks)
	for _, b := range ports {
		f.Ports = append(f.Ports, b.String())
	}
	for _, w := range quotaWords {
		switch v := *w.of(&u.Limits); {
		case v == 0:
		case w.word == "memory":
			f.Limits = append(f.Limits, yaml.MapItem{Key: w.word, Value: FormatSize(v)})
		default:
			f.Limits = append(f.Limits, yaml.MapItem{Key: w.word, Value: v})
		}
	}
	if u.Attachments != DefaultAttachments {
		f.Limits = append(f.Limits, yaml.MapItem{Key: "attachments", Value: u.Attachments})
	}
	return f
}

func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// UserNames are the users as they were written, also those that this host does not have.
func (u ULP) UserNames() []string { return accountNames(u.Users, u.UnknownUsers) }

// GroupNames are the groups like UserNames.
func (u ULP) GroupNames() []string { return accountNames(u.Groups, u.UnknownGroups) }

func accountNames(known []Account, unknown []string) (names []string) {
	for _, a := range known {
		names = append(names, a.Name)
	}
	return append(names, unknown...)
}

// AddULP writes ulps.d/NAME.yaml like AddPeer does. It fails as that does.
func AddULP(main string, u ULP) (string, error) {
	if err := CheckULPName(u.Name); err != nil {
		return "", fmt.Errorf("ULP name %q %w", u.Name, err)
	}
	return add(main, ulpsDir, u.Name, fileOfULP(u))
}

// SetULP changes the file that declares a ULP like SetTarget does. It fails as that does.
func SetULP(main, name string, change func(*ULP) error) (string, error) {
	return set(main, ulpsDir, "ULP", name, func(c *Config) (before, after any, err error) {
		old, _ := c.ULP(name)
		u := old
		err = change(&u)
		return fileOfULP(old), fileOfULP(u), err
	})
}

// RemoveULP removes the file that AddULP wrote, like RemovePeer. It fails as that does, and as mayGo does,
// which is asked about a ULP that has such a file.
func RemoveULP(main, name string, mayGo func(ULP) error) error {
	return changeFiles(main, func(c *fileChange) error {
		if err := c.remove(ulpsDir, "ULP", name); err != nil {
			return err
		}
		u, _ := c.before.ULP(name)
		return mayGo(u)
	})
}

// IsInOwnFile reports whether a ULP is one of ulps.d, and not of the main file.
func (c *Config) IsInOwnFile(u ULP) bool {
	return filepath.Dir(u.Origin.File) == filepath.Join(c.Dir(), ulpsDir)
}

// WithoutPeer is the ULP if it may not use a peer any more; false if nothing is left of it that can be.
func (u ULP) WithoutPeer(peer string) (ULP, bool) {
	u.Peers = slices.DeleteFunc(slices.Clone(u.Peers), func(p string) bool { return p == peer })
	u.Exports = slices.DeleteFunc(slices.Clone(u.Exports), func(e string) bool { return strings.HasPrefix(e, peer+"/") })
	msg, _ := u.fault()
	return u, msg == ""
}
