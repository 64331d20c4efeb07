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

func newResources(u *verbs.ULP, region, msgs int, access verbs.Access) (*resources, error) {
	pd, err := u.AllocPD()
	if err != nil {
		return nil, err
	}
	r := &resources{pd: pd}
	if r.region, err = pd.RegisterMR(make([]byte, region), access); err == nil {
		r.msgs, err = pd.RegisterMR(make([]byte, msgs), verbs.LocalWrite)
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
