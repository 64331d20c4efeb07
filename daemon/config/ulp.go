package config

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// ULP is a local consumer of the RNIC (RFC 5042 section 2.1.3): users of this host
// who may use the daemon through its control socket, with an account of their own.
// Root and the user that the daemon runs as need none.
type ULP struct {
	Name        string
	Users       []Account // whoever is one of these
	Groups      []Account // or in one of these groups
	Privileged  bool      // may do all that root may
	Trust       Trust     // "": as the service of attachments
	Limits      Quota     // 0 fields: its fair share of the device
	Attachments int       // disks attached at a time
	Peers       []string  // may be pinged, and all that they offer attached; sorted
	Exports     []string  // PEER/EXPORT: may be attached, and the peer pinged; sorted
	// Ports are those of its programs' streams with Peers; sorted. Those of a ULP without users
	// and groups are for root's programs, which may use those of all ULPs.
	Ports []PortBlock
	// Transport is what carries those streams: TransportTCP, also if it is "", or TransportSCTPUDP.
	Transport Transport
	Listen    bool // its programs may take connections at Ports
	// Partition is that of its programs' ports, and of what it attaches; "": of no partition, and the service's.
	Partition string
	Label     string // its security label; "": of each user as the kernel reports it, or the service's
	Origin    Pos
	// Disabled is which of its users or groups does not exist on this host. Then the ULP
	// has no users: a name that is reused must not become somebody else's by accident.
	Disabled error
	// UnknownUsers and UnknownGroups are those of which Disabled says that they do not exist.
	UnknownUsers, UnknownGroups []string
}

// Account is a user or a group of this host.
type Account struct {
	ID   uint32
	Name string // as it was written: a name or the number
}

// UnmappedID is the user, and the group, that the kernel reports for those that a user
// namespace does not have. It identifies nobody.
const UnmappedID = 65534

// Equal reports whether two declarations are the same, wherever they are written.
func (u ULP) Equal(v ULP) bool {
	u.Origin, v.Origin = Pos{}, Pos{}
	if (u.Disabled == nil) != (v.Disabled == nil) || u.Disabled != nil && u.Disabled.Error() != v.Disabled.Error() {
		return false
	}
	u.Disabled, v.Disabled = nil, nil
	return reflect.DeepEqual(u, v)
}

// HasUser reports whether a user is named.
func (u ULP) HasUser(uid uint32) bool { return has(u.Users, uid) }

// HasGroup reports whether a group is named.
func (u ULP) HasGroup(gid uint32) bool { return has(u.Groups, gid) }

func has(list []Account, id uint32) bool {
	return slices.ContainsFunc(list, func(a Account) bool { return a.ID == id })
}

// MayUse reports whether the ULP may see and ping a peer.
func (u ULP) MayUse(peer string) bool {
	return u.Privileged || slices.Contains(u.Peers, peer) ||
		slices.ContainsFunc(u.Exports, func(s string) bool { return strings.HasPrefix(s, peer+"/") })
}

// MayAttach reports whether the ULP may attach a peer's export.
func (u ULP) MayAttach(peer, export string) bool {
	return u.Privileged || slices.Contains(u.Peers, peer) || slices.Contains(u.Exports, peer+"/"+export)
}

// ULP finds a ULP by name.
func (c *Config) ULP(name string) (ULP, bool) {
	i := slices.IndexFunc(c.ULPs, func(u ULP) bool { return u.Name == name })
	if i < 0 {
		return ULP{}, false
	}
	return c.ULPs[i], true
}

// ULPOf finds the ULP of a user of this host: the one that names the user, otherwise the
// first one that names one of the user's groups: of the main file, then of ulps.d by the files' names.
func (c *Config) ULPOf(uid uint32, gids []uint32) (ULP, bool) {
	if uid == UnmappedID {
		return ULP{}, false
	}
	i := slices.IndexFunc(c.ULPs, func(u ULP) bool { return u.HasUser(uid) })
	if i < 0 {
		i = slices.IndexFunc(c.ULPs, func(u ULP) bool {
			return slices.ContainsFunc(gids, func(g uint32) bool { return g != UnmappedID && u.HasGroup(g) })
		})
	}
	// A user of a disabled ULP has no other ULP, not even by a group.
	if i < 0 || c.ULPs[i].Disabled != nil {
		return ULP{}, false
	}
	return c.ULPs[i], true
}

func (d *decoder) ulp(n ast.Node) ULP {
	u := ULP{Origin: d.pos(n), Attachments: DefaultAttachments}
	faults := len(d.errs)
	d.mapping(n, "a ULP", fields{
		"name":       d.str("ULP name", &u.Name, CheckULPName),
		"users":      d.accounts("user", &u.Users, &u.UnknownUsers, &u.Disabled, userID),
		"groups":     d.accounts("group", &u.Groups, &u.UnknownGroups, &u.Disabled, groupID),
		"privileged": d.boolean("privileged", &u.Privileged),
		"trust":      d.trust(&u.Trust),
		"limits": func(n ast.Node) {
			f := d.quotaFields(&u.Limits, MinServiceMemory)
			f["attachments"] = d.integer("attachments", 1, MaxAttachments, func(v uint64) { u.Attachments = int(v) })
			d.mapping(n, "limits", f)
		},
		"peers":     d.names("peer", &u.Peers, CheckPeerName),
		"exports":   d.names("export", &u.Exports, checkDisk),
		"ports":     d.portBlocks(&u.Ports),
		"transport": d.str("transport", (*string)(&u.Transport), CheckProgramTransport),
		"partition": d.str("partition", &u.Partition, CheckPartitionName),
		"label":     d.str("label", &u.Label, CheckLabel),
		"listen":    d.boolean("listen", &u.Listen),
	})
	u.SetTransport(u.Transport)
	slices.Sort(u.Peers)
	slices.Sort(u.Exports)
	d.checkWhole(n, faults, u.fault)
	return u
}

// names reads a list of names without repetitions.
func (d *decoder) names(what string, dst *[]string, check func(string) error) func(ast.Node) {
	return func(n ast.Node) {
		d.sequence(n, what+"s", func(n ast.Node) {
			var s string
			if d.str(what, &s, check)(n); s != "" && !slices.Contains(*dst, s) {
				*dst = append(*dst, s)
			}
		})
	}
}

// errNoAccount is a user or group that this host does not have.
var errNoAccount = errors.New("does not exist on this host")

// accounts reads a list of names or numbers of users, or of groups. One that does not
// exist goes to unknown, and disables the ULP.
func (d *decoder) accounts(what string, dst *[]Account, unknown *[]string, disabled *error, lookup func(string) (uint32, error)) func(ast.Node) {
	return func(n ast.Node) {
		d.sequence(n, what+"s", func(n ast.Node) {
			switch n.(type) {
			case *ast.StringNode, *ast.IntegerNode:
			default:
				d.fail(n, fmt.Sprintf("%s is %s", what, kind(n)), "write the name of a "+what+" or its number")
				return
			}
			name := n.GetToken().Value
			id, err := lookup(name)
			if errors.Is(err, errNoAccount) {
				*unknown = append(*unknown, name)
				*disabled = errors.Join(*disabled, &Error{Pos: d.pos(n), Msg: fmt.Sprintf("%s %q %s", what, name, err), Fix: "create it, or take it out, then run `ironwarp reload`"})
				return
			}
			if err != nil {
				d.fail(n, fmt.Sprintf("%s %q %s", what, name, err), "`getent passwd` and `getent group` list this host's users and groups")
				return
			}
			if !has(*dst, id) {
				*dst = append(*dst, Account{id, name})
			}
		})
	}
}

// FindUser finds a user of this host by name or number. The error is the reason why it cannot be a ULP's.
func FindUser(name string) (Account, error) {
	id, err := userID(name)
	return Account{id, name}, err
}

// FindGroup finds a group like FindUser. It fails as that does.
func FindGroup(name string) (Account, error) {
	id, err := groupID(name)
	return Account{id, name}, err
}

func userID(name string) (uint32, error) {
	text := name
	if u, err := user.Lookup(name); err == nil {
		text = u.Uid
	}
	id, err := accountID(text)
	if err == nil && id == 0 {
		err = errors.New("is root, who may do everything as it is")
	}
	return id, err
}

func groupID(name string) (uint32, error) {
	text := name
	if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	return accountID(text)
}

func accountID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil && strings.Trim(text, "+-0123456789") == "":
		return 0, errors.New("does not exist on this host")
	case err != nil:
		return 0, errNoAccount
	case id == UnmappedID:
		return 0, errors.New("is what the kernel reports for anybody whom it cannot name")
	case id == math.MaxUint32:
		return 0, errors.New("is nobody")
	}
	return uint32(id), nil
}

func checkDisk(s string) error {
	peer, export, found := strings.Cut(s, "/")
	if !found {
		return errors.New("is not PEER/EXPORT")
	}
	if err := CheckPeerName(peer); err != nil {
		return err
	}
	return CheckExportName(export)
}

// CheckULPName fails if a name cannot be a ULP's, as CheckPeerName does.
func CheckULPName(s string) error {
	if slices.Contains(ServiceNames(), s) || s == ServiceFabric {
		return errors.New("is the name of a service of the daemon")
	}
	return checkName(s, MaxULPName)
}

// ProgramTransports are what may carry streams of programs.
func ProgramTransports() []string { return []string{string(TransportTCP), string(TransportSCTPUDP)} }

// CheckProgramTransport fails unless a word is one of ProgramTransports.
func CheckProgramTransport(s string) error {
	if slices.Contains(ProgramTransports(), s) {
		return nil
	}
	return fmt.Errorf("is none that programs have: allowed are %s", strings.Join(ProgramTransports(), " and "))
}

// SetTransport sets what carries the streams of the ULP's programs, and so of what protocol its ports are.
func (u *ULP) SetTransport(t Transport) {
	u.Transport = t
	if t == TransportTCP {
		u.Transport = ""
	}
	for i := range u.Ports {
		u.Ports[i].UDP = t == TransportSCTPUDP
	}
}

func (u *ULP) fault() (msg, fix string) {
	switch {
	case u.Name == "":
		return "a ULP without name", "add name: and a short name of your choice"
	case u.Nobody() && (u.Privileged || len(u.Ports) == 0 || len(u.Peers) == 0):
		return fmt.Sprintf("ULP %s without users and groups", u.Name), "add users: [...] or groups: [...] of this host; a ULP without has ports: and peers:, for root's programs"
	case u.Privileged && len(u.Peers)+len(u.Exports) > 0:
		return fmt.Sprintf("ULP %s is privileged beside peers or exports", u.Name), "who is privileged may use them all: remove them, or privileged"
	case !u.Privileged && len(u.Peers)+len(u.Exports) == 0:
		return fmt.Sprintf("ULP %s may use no peer", u.Name), "add peers: [NAME] for all that they offer, or exports: [PEER/EXPORT]"
	case !u.Privileged && len(u.Ports) > 0 && len(u.Peers) == 0:
		return fmt.Sprintf("ULP %s has ports, and may use no peer as a whole", u.Name), "add peers: [NAME], with whom its programs may have streams, or remove ports"
	case u.Transport != "" && len(u.Ports) == 0:
		return fmt.Sprintf("ULP %s has transport: %s without ports", u.Name, u.Transport), "add ports: [FIRST/SIZE], of its programs' streams, or remove transport"
	case u.Listen && len(u.Ports) == 0:
		return fmt.Sprintf("ULP %s has listen: true without ports", u.Name), "add ports: [FIRST/SIZE], at which its programs may take connections"
	}
	return "", ""
}

// Nobody reports whether no user of this host is of the ULP: its ports are for root's programs.
func (u ULP) Nobody() bool { return len(u.Users)+len(u.Groups) == 0 && u.Disabled == nil }

// checkULPs finds conflicts between ULPs, and between them and the peers.
func checkULPs(c *Config, peers map[string]Pos) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	if n := len(c.ULPs); n > MaxULPs {
		fail(c.ULPs[MaxULPs].Origin, fmt.Sprintf("%d ULPs; %d are possible", n, MaxULPs), "let several users be one ULP")
	}
	for i, u := range c.ULPs {
		for _, v := range c.ULPs[:i] {
			if u.Name != "" && u.Name == v.Name {
				fail(u.Origin, fmt.Sprintf("ULP %s is already declared at %s", u.Name, v.Origin), "give each ULP its own name")
			}
			for _, a := range u.Users {
				if v.HasUser(a.ID) {
					fail(u.Origin, fmt.Sprintf("user %s is of ULP %s already", a.Name, v.Name), "a user is one ULP")
				}
			}
			for _, g := range u.Groups {
				if v.HasGroup(g.ID) {
					fail(u.Origin, fmt.Sprintf("group %s is of ULP %s already", g.Name, v.Name), "a group is of one ULP")
				}
			}
		}
		for _, p := range u.Peers {
			if _, ok := peers[p]; !ok {
				fail(u.Origin, fmt.Sprintf("ULP %s may use peer %s, which is not configured", u.Name, p), "add it with `ironwarp peer add`, or remove it from peers")
			}
		}
		for _, e := range u.Exports {
			p, _, _ := strings.Cut(e, "/")
			if _, ok := peers[p]; !ok {
				fail(u.Origin, fmt.Sprintf("ULP %s may attach %s, but no peer %s is configured", u.Name, e, p), "add it with `ironwarp peer add`, or remove it from exports")
			}
		}
	}
	return errs
}
