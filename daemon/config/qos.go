package config

import (
	"fmt"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/block/gate"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// qosFile is gate.Limits as exports.d holds them.
type qosFile struct {
	IOPS           int64  `yaml:"iops,omitempty"`
	ReadIOPS       int64  `yaml:"read_iops,omitempty"`
	WriteIOPS      int64  `yaml:"write_iops,omitempty"`
	Bandwidth      string `yaml:"bandwidth,omitempty"`
	ReadBandwidth  string `yaml:"read_bandwidth,omitempty"`
	WriteBandwidth string `yaml:"write_bandwidth,omitempty"`
	Burst          string `yaml:"burst,omitempty"`
}

func fileOfQoS(l gate.Limits) *qosFile {
	if l.IsZero() {
		return nil
	}
	size := func(n int64) string {
		if n == 0 {
			return ""
		}
		return FormatSize(n)
	}
	f := &qosFile{IOPS: l.IOPS, ReadIOPS: l.ReadIOPS, WriteIOPS: l.WriteIOPS, Bandwidth: size(l.Bandwidth), ReadBandwidth: size(l.ReadBandwidth), WriteBandwidth: size(l.WriteBandwidth)}
	if l.Burst > 0 {
		f.Burst = FormatDuration(l.Burst)
	}
	return f
}

// qos reads how the I/O of an export is limited.
func (d *decoder) qos(l *gate.Limits) func(ast.Node) {
	perSecond := func(what string, n *int64) func(ast.Node) {
		return d.integer(what, 1, gate.MaxRate, func(v uint64) { *n = int64(v) })
	}
	bytes := func(what string, n *int64) func(ast.Node) {
		return d.size(what, gate.MinBandwidth, func(v int64) { *n = v })
	}
	return func(n ast.Node) {
		d.mapping(n, "qos", fields{
			"iops":            perSecond("iops", &l.IOPS),
			"read_iops":       perSecond("read_iops", &l.ReadIOPS),
			"write_iops":      perSecond("write_iops", &l.WriteIOPS),
			"bandwidth":       bytes("bandwidth", &l.Bandwidth),
			"read_bandwidth":  bytes("read_bandwidth", &l.ReadBandwidth),
			"write_bandwidth": bytes("write_bandwidth", &l.WriteBandwidth),
			"burst":           d.duration("burst", time.Millisecond, gate.MaxBurst, func(v time.Duration) { l.Burst = v }),
		})
		if err := l.Check(); err != nil {
			d.fail(n, fmt.Sprintf("qos has %v", err), "")
		}
	}
}

// LimitsOf are the limits that a request asks for. It fails with an *api.Error if one makes no sense.
func LimitsOf(q api.QoS) (gate.Limits, error) {
	burst, err := api.Seconds(q.BurstSeconds, 0, gate.MaxBurst)
	if err != nil {
		return gate.Limits{}, err
	}
	l := gate.Limits{IOPS: q.IOPS, ReadIOPS: q.ReadIOPS, WriteIOPS: q.WriteIOPS, Bandwidth: q.Bandwidth, ReadBandwidth: q.ReadBandwidth, WriteBandwidth: q.WriteBandwidth, Burst: burst}
	if err := l.Check(); err != nil {
		return gate.Limits{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the limits have %v", err)}
	}
	return l, nil
}

// QoSOf is the reverse of LimitsOf.
func QoSOf(l gate.Limits) api.QoS {
	return api.QoS{IOPS: l.IOPS, ReadIOPS: l.ReadIOPS, WriteIOPS: l.WriteIOPS, Bandwidth: l.Bandwidth, ReadBandwidth: l.ReadBandwidth, WriteBandwidth: l.WriteBandwidth, BurstSeconds: l.Burst.Seconds()}
}
