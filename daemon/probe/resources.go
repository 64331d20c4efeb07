package probe

import (
	"errors"

	"github.com/ironwarp/ironwarp/verbs"
)

// resources are the protection domain of one stream and its memory: a region
// for Reads and Writes, and one for messages.
type resources struct {
	pd           *verbs.PD
	region, msgs *verbs.MR
}

// newResources takes mem, a region of RegionSize bytes and the messages behind it.
func newResources(u *verbs.ULP, trust verbs.TrustModel, mem []byte, access verbs.Access) (*resources, error) {
	pd, err := u.AllocPDAs(trust.Alone())
	if err != nil {
		return nil, err
	}
	r := &resources{pd: pd}
	if r.region, err = pd.RegisterMR(exposedRegion(mem), access); err == nil {
		r.msgs, err = pd.RegisterMR(mem[RegionSize:], verbs.LocalWrite)
	}
	if err != nil {
		return nil, errors.Join(err, r.free())
	}
	return r, nil
}

// free gives everything back; the stream has ended.
func (r *resources) free() error {
	var err error
	for _, mr := range []*verbs.MR{r.region, r.msgs} {
		if mr != nil {
			err = errors.Join(err, mr.Deregister())
		}
	}
	return errors.Join(err, r.pd.Dealloc())
}
