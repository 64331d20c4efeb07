package doctor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// blocks reports whether this kernel can block a peer that creates streams without
// end (RFC 5042 6.4.1), and whom it blocks now.
func (x *examination) blocks() {
	f := Finding{What: "blocks", Level: OK, Found: "the kernel can block a peer (nf_tables); none is blocked"}
	if err := guard.CanBlock(); err != nil {
		f.Level, f.Found = x.levelOfMissing(x.needsIPsec()), "not known: "+err.Error()
		if g, denied := asRoot(f.What, err); denied {
			f = g
		}
		if errors.Is(err, guard.ErrNoBlock) {
			f.Level, f.Found = Warn, err.Error()+"; a peer that creates streams without end can be refused, but no packets of it are dropped"
			f.Do = []string{"modprobe nf_tables"}
		}
		x.addFinding(f)
		return
	}
	have, err := guard.ListBlocks("")
	faults, err2 := guard.BlockFaults("")
	switch err := errors.Join(err, err2); {
	case err != nil:
		f.Level, f.Found, f.Do = Warn, fmt.Sprintf("cannot be read: %v", err), []string{"nft list table inet ironwarp-block"}
	case len(have) > 0:
		var texts []string
		for _, b := range have {
			texts = append(texts, fmt.Sprintf("%s for another %s, %d packets dropped", b, time.Until(b.Until).Round(time.Second), b.Packets))
			f.Do = append(f.Do, "ironwarp block rm "+b.Peer)
		}
		f.Level, f.Found = Warn, "the kernel drops streams of "+strings.Join(texts, "; ")
	}
	if len(faults) > 0 {
		f.Level = Fail
		f.Found += "; but " + strings.Join(faults, ", ")
		f.Do = append(f.Do, "systemctl restart ironwarp", "Find out who changed it: `nft list table inet ironwarp-block` shows what there is now.")
	}
	x.addFinding(f)
}
