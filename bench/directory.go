package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// The size of directory that is measured: as large as one is made for.
const (
	directoryHosts    = 1000
	directoryServices = 10_000
	directoryManager  = 0x1 << 32
)

// directoryRows are the lines of the directory, which has no rival.
func directoryRows() []row {
	const size = "1,000 hosts and 10,000 services"
	return []row{
		{name: "memory of a directory, " + size, unit: "MB", scale: 1e-6, less: true, absolute: true, aim: 64, ours: ref{"directory", "memory"},
			note: "growth of the manager's resident memory; each host is subscribed to all events"},
		{name: "GetTable of 10,000 services", unit: "ms", scale: 1e3, less: true, absolute: true, aim: 250, ours: ref{"directory", "table"},
			note: "SA and requester, in one process, without the streams between them"},
		{name: "a service by its name among 10,000", unit: "ms", scale: 1e3, less: true, absolute: true, aim: 5, ours: ref{"directory", "name"}, note: "likewise"},
		{name: "an event, until 1,000 hosts have answered its report", unit: "ms", scale: 1e3, less: true, absolute: true, aim: 100, ours: ref{"directory", "event"}, note: "likewise"},
	}
}

// measuredDirectory is an SA, and the time as it is told it.
type measuredDirectory struct {
	*sa.Server
	now time.Time
	id  uint64
}

func directoryHost(n int) mad.GUID { return mad.GUID(0x100+n)<<32 | 1 }

// ask returns what comes back when a host asks.
func (d *measuredDirectory) ask(host int, method mad.Method, attr mad.Attribute, mask mad.Mask, record mad.Record) []sa.Outgoing {
	d.id++
	m := mad.SA{
		Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: attr, TransactionID: d.id},
		ComponentMask: mask,
	}
	if record != nil {
		record.Append(m.Data[:0])
	}
	return d.answerTo(host, m.MAD())
}

func (d *measuredDirectory) answerTo(host int, m mad.MAD) []sa.Outgoing {
	return d.Handle(d.now, sa.Requester{GUID: directoryHost(host)}, mad.Packet{MAD: m})
}

// measureDirectory fills a directory and asks it.
func measureDirectory(context.Context) (metrics, error) {
	before, err := residentMemory()
	if err != nil {
		return nil, err
	}
	d := &measuredDirectory{Server: sa.New(sa.Config{Options: sa.DefaultOptions(), GUID: directoryManager}), now: time.Now()}
	if err := d.fill(); err != nil {
		return nil, err
	}
	after, err := residentMemory()
	if err != nil {
		return nil, err
	}
	m := metrics{"memory": after - before}
	for name, what := range map[string]func() error{"table": d.table, "name": d.byName, "event": d.event} {
		var took []float64
		for range 21 {
			d.now = d.now.Add(10 * time.Second) // so that no question is one too many
			start := time.Now()
			if err := what(); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			took = append(took, time.Since(start).Seconds())
		}
		slices.Sort(took)
		m[name] = took[len(took)/2]
	}
	runtime.KeepAlive(d)
	return m, nil
}

func serviceOf(n int) (r mad.ServiceRecord, err error) {
	r = mad.ServiceRecord{ID: uint64(n), GID: mad.MakeGID(mad.LinkLocalPrefix, directoryHost(n%directoryHosts)), Lease: mad.ServiceLeaseInfinite}
	r.Name, err = mad.MakeName(fmt.Sprintf("service%d", n))
	return r, err
}

// fill has all hosts come, register their services, and subscribe to all events.
func (d *measuredDirectory) fill() error {
	for h := range directoryHosts {
		if _, _, err := d.PortUp(d.now, sa.Port{GUID: directoryHost(h), Name: fmt.Sprintf("host%d", h)}); err != nil {
			return err
		}
	}
	for n := range directoryServices {
		r, err := serviceOf(n)
		if err != nil {
			return err
		}
		d.ask(n%directoryHosts, mad.MethodSet, mad.AttrServiceRecord, mad.ServiceMaskID|mad.ServiceMaskGID|mad.ServiceMaskName, r)
	}
	for h := range directoryHosts {
		d.ask(h, mad.MethodSet, mad.AttrInformInfo, 0, mad.InformInfo{
			LIDBegin: mad.InformAllLIDs, Generic: 0xff, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: mad.InformAllTraps, ProducerType: mad.InformAllProducers,
		})
	}
	if n, s := len(d.Services(d.now)), len(d.Subscriptions()); n != directoryServices || s != directoryHosts {
		return fmt.Errorf("%d services and %d subscriptions", n, s)
	}
	return nil
}

// table has one host get all services.
func (d *measuredDirectory) table() error {
	out := d.ask(7, mad.MethodGetTable, mad.AttrServiceRecord, 0, nil)
	receiver := mad.NewReceiver(d.id, 2*directoryServices*mad.ServiceRecordLen, mad.MaxWindow)
	for len(out) > 0 {
		packet := out[0].Packet
		out = out[1:]
		m, err := mad.ParseSA(&packet.MAD)
		if err != nil {
			return err
		}
		ack, send, err := receiver.Receive(&m)
		if err != nil {
			return err
		}
		if send {
			out = append(out, d.answerTo(7, ack)...)
		}
	}
	head, table := receiver.Answer()
	rows, err := mad.Rows(table, head.AttributeOffset, mad.ServiceRecordLen)
	if err != nil {
		return err
	}
	if len(rows) != directoryServices {
		return fmt.Errorf("%d services (%s)", len(rows), head.Status)
	}
	return nil
}

// byName has one host get one service.
func (d *measuredDirectory) byName() error {
	r, err := serviceOf(directoryServices - 1)
	if err != nil {
		return err
	}
	out := d.ask(7, mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskName, r)
	if len(out) != 1 || out[0].Packet.MAD.Header().Status != mad.StatusOK {
		return fmt.Errorf("%d answers", len(out))
	}
	return nil
}

// event has all hosts told of a path, and answer.
func (d *measuredDirectory) event() error {
	n := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorPathGone}
	mad.PathDetails{SGID: mad.MakeGID(mad.LinkLocalPrefix, directoryHost(0)), DGID: mad.MakeGID(mad.LinkLocalPrefix, directoryHost(1))}.Set(&n)
	out := d.Announce(d.now, n)
	if len(out) != directoryHosts {
		return fmt.Errorf("%d reports", len(out))
	}
	for _, o := range out {
		m, err := mad.ParseSA(&o.Packet.MAD)
		if err != nil {
			return err
		}
		m.Method = mad.MethodReportResp
		d.Handle(d.now, sa.Requester{GUID: o.To}, mad.Packet{MAD: m.MAD()})
	}
	for _, p := range d.Ports() {
		if p.Waiting != 0 {
			return fmt.Errorf("%d reports still wait for %s", p.Waiting, p.Name)
		}
	}
	return nil
}
