package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// dormantTable is the flag of a table whose chains have no hooks:
// NFT_TABLE_F_DORMANT.
const dormantTable = 1

// maxElements is how many elements of a set one message holds: the list's length
// in bytes has 16 bits, and an element of the largest, a block's, has 300.
const maxElements = 200

// tableBuffer is the size of a batch in bytes at most, and of the answers to it:
// the blocks of 1024 peers fit, and that of one with all ports that programs may have.
const tableBuffer = 32 << 20

// maxKeys are the links that are written at once: larger batches take no less time for each, and
// would not fit for many peers with large blocks of ports.
const maxKeys = 1 << 16

// tableTimes bound the waits for nf_tables: the first, and the one when that was not enough.
// The kernel answers while it takes what it is sent, which a busy one does late; it answers
// a batch with less than is waited for when it is out of memory.
var tableTimes = []time.Duration{5 * time.Second, 20 * time.Second}

// askTables calls f with a connection to nf_tables in the network namespace of the thread.
// If f fails and its time is over, it is called once more, with more time and a connection
// on which no answers are late: f has to look afresh then what the first call has done.
func askTables(f func(*nftables.Conn) error) error {
	var err error
	for _, wait := range tableTimes {
		end := time.Now().Add(wait)
		var c *nftables.Conn
		c, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			return errors.Join(c.SetDeadline(end), c.SetWriteBuffer(tableBuffer), c.SetReadBuffer(tableBuffer))
		}))
		if err != nil {
			return fmt.Errorf("open netlink for nf_tables: %w", err)
		}
		err = f(c)
		_ = c.CloseLasting()
		if err == nil || time.Now().Before(end) {
			return err
		}
	}
	return fmt.Errorf("nf_tables has not answered in time, the kernel is too busy: %w", err)
}

// withoutTables reports of an error that this kernel has no nf_tables.
func withoutTables(err error) bool {
	return errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EAFNOSUPPORT)
}

// findTable returns the table of that name and the family inet, or nil. On a
// kernel without nf_tables there is none, and the error says so (withoutTables).
func findTable(c *nftables.Conn, name string) (*nftables.Table, error) {
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if errors.Is(err, syscall.EINVAL) {
		err = syscall.EOPNOTSUPP // nfnetlink: no such subsystem
	}
	if err != nil {
		return nil, fmt.Errorf("list the tables of nf_tables: %w", err)
	}
	for _, t := range all {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, nil
}

// setElements queues a change of a set, by SetAddElements or SetDeleteElements.
func setElements(change func(*nftables.Set, []nftables.SetElement) error, s *nftables.Set, elements []nftables.SetElement) error {
	for some := range slices.Chunk(elements, maxElements) {
		if err := change(s, some); err != nil {
			return fmt.Errorf("change set %s of nf_tables: %w", s.Name, err)
		}
	}
	return nil
}

// signatures returns what rules do, a line for each, without the registers, which
// the kernel numbers in its own way.
func signatures(rules []*nftables.Rule) string {
	var b strings.Builder
	for _, r := range rules {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Meta:
				fmt.Fprintf(&b, "meta %d %t;", e.Key, e.SourceRegister)
			case *expr.Cmp:
				fmt.Fprintf(&b, "cmp %d %x;", e.Op, e.Data)
			case *expr.Payload:
				fmt.Fprintf(&b, "payload %d %d %d;", e.Base, e.Offset, e.Len)
			case *expr.Exthdr:
				fmt.Fprintf(&b, "exthdr %d %d %d %d;", e.Op, e.Type, e.Offset, e.Len)
			case *expr.Bitwise:
				fmt.Fprintf(&b, "bitwise %x %x;", e.Mask, e.Xor)
			case *expr.Lookup:
				fmt.Fprintf(&b, "lookup %s %t;", e.SetName, e.Invert)
			case *expr.Verdict:
				fmt.Fprintf(&b, "verdict %d %s;", e.Kind, e.Chain)
			default:
				fmt.Fprintf(&b, "%T;", e)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
