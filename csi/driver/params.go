package driver

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Parameters of a StorageClass; those of the quality of service may be in a VolumeAttributesClass too.
const (
	paramHost = "host" // the storage host; absent: the first that has the pool, room, and the right topology
	paramPool = "pool" // absent: the only one
)

// qosParams are the parameters of a volume's quality of service, and where their values belong.
var qosParams = map[string]func(*api.QoS) *int64{
	"iops":           func(q *api.QoS) *int64 { return &q.IOPS },
	"readIOPS":       func(q *api.QoS) *int64 { return &q.ReadIOPS },
	"writeIOPS":      func(q *api.QoS) *int64 { return &q.WriteIOPS },
	"bandwidth":      func(q *api.QoS) *int64 { return &q.Bandwidth },
	"readBandwidth":  func(q *api.QoS) *int64 { return &q.ReadBandwidth },
	"writeBandwidth": func(q *api.QoS) *int64 { return &q.WriteBandwidth },
}

const paramBurst = "burstSeconds"

// sidecarPrefix begins the keys that Kubernetes' sidecars add, such as the name of the claim. They are not for the driver.
const sidecarPrefix = "csi.storage.k8s.io/"

func isSidecar(key string) bool { return strings.HasPrefix(key, sidecarPrefix) }

// params are what a request asks of a volume besides its size.
type params struct {
	host, pool string
	qos        api.QoS
}

// parseParams reads the parameters of a request. It fails for a key that it does not know, so that a typing error is no volume
// without limits; the error is the reason.
func parseParams(m map[string]string) (p params, err error) {
	qos := make(map[string]string)
	for key, value := range m {
		switch {
		case key == paramHost:
			if p.host = value; value != ownHost && !isName(value, maxHost) {
				return p, fmt.Errorf("parameter %s: %q cannot be the name of a peer", key, value)
			}
		case key == paramPool:
			if p.pool = value; !isName(value, maxPool) {
				return p, fmt.Errorf("parameter %s: %q cannot be the name of a pool", key, value)
			}
		case isSidecar(key):
		default:
			qos[key] = value
		}
	}
	p.qos, err = parseQoS(qos)
	return p, err
}

// CheckParameters returns why the parameters of a StorageClass would be refused.
func CheckParameters(m map[string]string) error {
	_, err := parseParams(m)
	return err
}

// parseQoS reads the limits of a volume's I/O. It fails as parseParams does.
func parseQoS(m map[string]string) (q api.QoS, err error) {
	for key, value := range m {
		if key == paramBurst {
			q.BurstSeconds, err = strconv.ParseFloat(value, 64)
			if err != nil || q.BurstSeconds < 0 || math.IsNaN(q.BurstSeconds) || math.IsInf(q.BurstSeconds, 0) {
				return q, fmt.Errorf("parameter %s: %q is not a number of seconds", key, value)
			}
			continue
		}
		field, ok := qosParams[key]
		if !ok {
			return q, fmt.Errorf("unknown parameter %q; there are host, pool, iops, bandwidth, readIOPS, writeIOPS, readBandwidth, writeBandwidth and burstSeconds", key)
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return q, fmt.Errorf("parameter %s: %q is not a number of I/Os or bytes per second", key, value)
		}
		*field(&q) = n
	}
	return q, nil
}

// sizeOf returns the size of a volume that a range allows, and the most that it allows: least is the smallest possible one. It
// fails with OUT_OF_RANGE where there is none.
func sizeOf(r *csi.CapacityRange, least int64) (size, limit int64, err error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, 0, invalid("the capacity range has a negative size: %d to %d bytes", required, limit)
	case limit == 0:
		limit = math.MaxInt64
	}
	size = max(required, least)
	if size == 0 {
		size = min(defaultSize, limit/sizeUnit*sizeUnit)
	}
	if size > math.MaxInt64-sizeUnit {
		return 0, 0, outOfRange("%d bytes are more than any pool has", size)
	}
	size = (size + sizeUnit - 1) / sizeUnit * sizeUnit
	if size > limit || size == 0 {
		return 0, 0, outOfRange("a volume of %d to %d bytes was asked for; here it would have at least %d, a multiple of %d", required, limit, max(size, sizeUnit), sizeUnit)
	}
	return size, limit, nil
}
