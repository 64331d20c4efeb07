package sa_test

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// Two hosts come up; one registers a service, and the other asks where it is.
func Example() {
	const manager, alpha, beta mad.GUID = 0x1 << 32, 0x2 << 32, 0x3 << 32
	now := time.Unix(1_800_000_000, 0)
	s := sa.New(sa.Config{Options: sa.DefaultOptions(), GUID: manager})
	for _, p := range []sa.Port{{GUID: alpha, Name: "alpha"}, {GUID: beta, Name: "beta"}} {
		lid, _, err := s.PortUp(now, p)
		fmt.Println(p.Name, lid, err)
	}

	name, _ := mad.MakeName("docs")
	record := mad.ServiceRecord{ID: 1, GID: mad.MakeGID(mad.LinkLocalPrefix, alpha), Lease: 600, Name: name}
	ask := func(from mad.GUID, method mad.Method, mask mad.Mask) mad.SA {
		request := mad.SA{
			Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: mad.AttrServiceRecord},
			ComponentMask: mask,
		}
		record.Append(request.Data[:0])
		out := s.Handle(now, sa.Requester{GUID: from}, mad.Packet{MAD: request.MAD()})
		answer, _ := mad.ParseSA(&out[0].Packet.MAD)
		return answer
	}
	fmt.Println(ask(alpha, mad.MethodSet, mad.ServiceMaskID|mad.ServiceMaskGID|mad.ServiceMaskLease|mad.ServiceMaskName).Status)

	now = now.Add(time.Minute)
	answer := ask(beta, mad.MethodGet, mad.ServiceMaskName)
	found, err := mad.ParseServiceRecord(answer.Data[:mad.ServiceRecordLen])
	fmt.Println(answer.Status, found.Name, found.GID, found.Lease, err)

	// Output:
	// alpha 1 <nil>
	// beta 2 <nil>
	// OK
	// OK docs fe80::2:0:0 540 <nil>
}
