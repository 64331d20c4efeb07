package ibsimnet

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// own is a fabric with IronWarp's directory.
type own struct {
	server *sa.Server
	guids  map[string]mad.GUID
	lids   map[string]mad.LID
	now    time.Time
	next   uint64
}

func (o *own) gid(host string) mad.GID { return mad.MakeGID(mad.LinkLocalPrefix, o.guids[host]) }
func (o *own) lid(host string) mad.LID { return o.lids[host] }

func (o *own) ask(t testing.TB, host string, request mad.SA) (mad.Status, []byte, bool) {
	t.Helper()
	o.next++
	request.TransactionID = o.next
	packet := mad.Packet{MAD: request.MAD()}
	for _, out := range o.server.Handle(o.now, sa.Requester{GUID: o.guids[host]}, packet) {
		answer, err := mad.ParseSA(&out.Packet.MAD)
		if err != nil {
			t.Fatal(err)
		}
		if out.To != o.guids[host] || answer.TransactionID != o.next || !answer.Method.Response() {
			continue // a report
		}
		length := 0
		switch p := answer.RMPP; {
		case answer.Status != mad.StatusOK:
		case !p.Active():
			length = mad.SADataLen
		case p.Flags&mad.RMPPLast != 0:
			length = int(p.Length) - 20 // the SA's part of the header
		default:
			length = mad.SADataLen
		}
		return answer.Status, answer.Data[:length], true
	}
	return 0, nil, false
}

// newOwn makes it with the options of an empty fabric.conf, changed by changes.
func newOwn(t *testing.T, changes ...func(*sa.Options)) *own {
	o := &own{guids: map[string]mad.GUID{"manager": 0x100001, "client": 0x100003, "other": 0x100005}, lids: map[string]mad.LID{}, now: time.Unix(1e9, 0)}
	options := sa.DefaultOptions()
	for _, change := range changes {
		change(&options)
	}
	o.server = sa.New(sa.Config{Options: options, Key: theSAKey, GUID: o.guids["manager"]})
	for _, host := range []string{"manager", "client", "other"} {
		lid, _, err := o.server.PortUp(o.now, sa.Port{GUID: o.guids[host], Name: host})
		if err != nil {
			t.Fatal(err)
		}
		o.lids[host] = lid
	}
	return o
}

// TestBaseRules asks IronWarp's directory, without the enhanced trust model, what TestOpenSM asks opensm: it answers the same, but
// for the differences of the table.
func TestBaseRules(t *testing.T) {
	tell(t, newOwn(t), func(r rule) reply {
		if r.ours != nil {
			return *r.ours
		}
		return r.opensm
	})
	for _, r := range baseRules {
		if (r.ours != nil) != (r.why != "") {
			t.Errorf("%s: a difference needs a reason", r.name)
		}
	}
}
