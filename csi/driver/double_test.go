package driver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// double stands for the daemons of a cluster in one process: storage hosts with pools, and a node that attaches. Tests set what it
// refuses.
type double struct {
	mu       sync.Mutex                       // guards the fields below it
	hosts    map[string]map[string]api.Volume // volumes of each host, by peer and name
	pools    map[string][]api.Pool
	peers    []api.Peer
	attached map[string]api.Attachment
	away     map[string]bool          // hosts that do not answer
	fail     map[string]error         // what a call of a name fails with
	hold     map[string]chan struct{} // until when a call of a name waits
	entered  chan string              // gets the names of calls that wait
	fenced   map[string][]string      // volume: peers, in their order
	calls    map[string]int           // by name
}

const mega = 1 << 20

// newDouble has the storage host "store" with pool "fast", and knows node "node".
func newDouble() *double {
	d := &double{hosts: map[string]map[string]api.Volume{"store": {}}, attached: make(map[string]api.Attachment), away: make(map[string]bool),
		fail: make(map[string]error), hold: make(map[string]chan struct{}), entered: make(chan string, 16), fenced: make(map[string][]string), calls: make(map[string]int)}
	d.pools = map[string][]api.Pool{"store": {{Name: "fast", Driver: api.DriverFile, Size: 1 << 40, Free: 1 << 40}}}
	d.peers = []api.Peer{{PeerSpec: api.PeerSpec{Name: "store", RemoteID: "store.example", LocalID: "node.example"}}}
	return d
}

// enter begins a call.
func (d *double) enter(name string) error {
	d.mu.Lock()
	d.calls[name]++
	hold, err := d.hold[name], d.fail[name]
	d.mu.Unlock()
	if hold != nil {
		d.entered <- name
		<-hold
	}
	return err
}

func (d *double) of(peer string) (map[string]api.Volume, error) {
	if d.away[peer] {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "no way to " + peer}
	}
	vols, ok := d.hosts[peer]
	if !ok {
		return nil, &api.Error{Code: api.CodeNotFound, Message: "no peer " + peer}
	}
	return vols, nil
}

func (d *double) get(peer, name string) (map[string]api.Volume, api.Volume, error) {
	vols, err := d.of(peer)
	if err != nil {
		return nil, api.Volume{}, err
	}
	v, ok := vols[name]
	if !ok {
		return vols, v, &api.Error{Code: api.CodeNotFound, Message: "no volume " + name}
	}
	return vols, v, nil
}

func (d *double) Info(context.Context) (api.Info, error) { return api.Info{}, d.enter("Info") }

func (d *double) Peers(context.Context) ([]api.Peer, error) { return d.peers, d.enter("Peers") }

func (d *double) Pools(_ context.Context, peer string) ([]api.Pool, error) {
	if err := d.enter("Pools"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.of(peer)
	return d.pools[peer], err
}

func (d *double) Volumes(_ context.Context, peer string) ([]api.Volume, error) {
	if err := d.enter("Volumes"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, err := d.of(peer)
	return slices.Collect(maps.Values(vols)), err
}

func (d *double) Volume(_ context.Context, peer, name string) (api.Volume, error) {
	if err := d.enter("Volume"); err != nil {
		return api.Volume{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, v, err := d.get(peer, name)
	return v, err
}

func (d *double) CreateVolume(_ context.Context, peer string, q api.VolumeCreate) (api.Volume, error) {
	if err := d.enter("CreateVolume"); err != nil {
		return api.Volume{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, err := d.of(peer)
	if err != nil {
		return api.Volume{}, err
	}
	i := slices.IndexFunc(d.pools[peer], func(p api.Pool) bool { return p.Name == q.Pool })
	if i < 0 {
		return api.Volume{}, &api.Error{Code: api.CodeNotFound, Message: "no pool " + q.Pool}
	}
	if q.Size > d.pools[peer][i].Free {
		return api.Volume{}, &api.Error{Code: api.CodeNoSpace, Message: "no room"}
	}
	v := api.Volume{Name: q.Name, Pool: q.Pool, Kind: api.KindVolume, Source: q.From, Size: q.Size, Export: q.Name, QoS: q.QoS, Writers: q.Writers, Created: time.Now()}
	if old, ok := vols[q.Name]; ok {
		if old.Size != v.Size || old.Source != v.Source || old.Kind != v.Kind {
			return old, &api.Error{Code: api.CodeExists, Message: "there already"}
		}
		return old, nil
	}
	vols[q.Name] = v
	return v, nil
}

func (d *double) RemoveVolume(_ context.Context, peer, name string) error {
	if err := d.enter("RemoveVolume"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return err
	}
	if len(v.Allow) > 0 {
		return &api.Error{Code: api.CodeInUse, Message: "published"}
	}
	delete(vols, name)
	return nil
}

func (d *double) ExpandVolume(_ context.Context, peer, name string, q api.VolumeExpand) (api.Volume, error) {
	if err := d.enter("ExpandVolume"); err != nil {
		return api.Volume{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return v, err
	}
	v.Size = max(v.Size, q.Size)
	vols[name] = v
	for key, at := range d.attached {
		if at.Export == name {
			at.Size = uint64(v.Size)
			d.attached[key] = at
		}
	}
	return v, nil
}

func (d *double) SnapshotVolume(_ context.Context, peer, name string, q api.VolumeSnapshot) (api.Volume, error) {
	if err := d.enter("SnapshotVolume"); err != nil {
		return api.Volume{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return v, err
	}
	if old, ok := vols[q.Name]; ok {
		return old, &api.Error{Code: api.CodeExists, Message: "there already"}
	}
	s := api.Volume{Name: q.Name, Pool: v.Pool, Kind: api.KindSnapshot, Source: name, Size: v.Size, Created: time.Now()}
	vols[q.Name] = s
	return s, nil
}

func (d *double) PublishVolume(_ context.Context, peer, name string, q api.VolumePublish) (api.VolumePublished, error) {
	if err := d.enter("PublishVolume"); err != nil {
		return api.VolumePublished{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return api.VolumePublished{}, err
	}
	if q.Peer != "node" && q.Peer != "node2" {
		return api.VolumePublished{}, &api.Error{Code: api.CodeNotFound, Message: "no peer " + q.Peer}
	}
	if i := slices.IndexFunc(v.Allow, func(l api.PeerLease) bool { return l.Peer == q.Peer }); i >= 0 {
		if l := v.Allow[i]; l.ReadOnly != q.ReadOnly || l.Shared != q.Shared {
			return api.VolumePublished{}, &api.Error{Code: api.CodeExists, Message: "published in another mode"}
		}
	} else {
		for _, l := range v.Allow {
			if !(q.Shared && l.Shared) && !(q.ReadOnly && l.ReadOnly) {
				return api.VolumePublished{}, &api.Error{Code: api.CodeInUse, Message: "published to " + l.Peer}
			}
		}
		v.Allow = append(slices.Clone(v.Allow), api.PeerLease{Peer: q.Peer, ReadOnly: q.ReadOnly, Shared: q.Shared, Generation: v.Generation})
		vols[name] = v
	}
	return api.VolumePublished{Export: v.Export, Size: v.Size, Generation: v.Generation}, nil
}

func (d *double) UnpublishVolume(_ context.Context, peer, name string, q api.VolumeUnpublish) (api.Fenced, error) {
	if err := d.enter("UnpublishVolume"); err != nil {
		return api.Fenced{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return api.Fenced{}, err
	}
	v.Allow = slices.DeleteFunc(slices.Clone(v.Allow), func(l api.PeerLease) bool { return l.Peer == q.Peer })
	v.Generation++
	vols[name] = v
	d.fenced[name] = append(d.fenced[name], q.Peer)
	return api.Fenced{Export: name, Peer: q.Peer, Generation: v.Generation}, nil
}

func (d *double) SetVolumeQoS(_ context.Context, peer, name string, q api.QoS) (api.Volume, error) {
	if err := d.enter("SetVolumeQoS"); err != nil {
		return api.Volume{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vols, v, err := d.get(peer, name)
	if err != nil {
		return v, err
	}
	v.QoS = q
	vols[name] = v
	return v, nil
}

func (d *double) Attachments(context.Context) ([]api.Attachment, error) {
	if err := d.enter("Attachments"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.attached), func(a, b api.Attachment) int { return cmp.Compare(a.Name(), b.Name()) }), nil
}

func (d *double) Attach(_ context.Context, q api.AttachRequest, _ func(api.Event)) (api.Attachment, error) {
	if err := d.enter("Attach"); err != nil {
		return api.Attachment{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, v, err := d.get(q.Peer, q.Export)
	if err != nil {
		return api.Attachment{}, err
	}
	at := api.Attachment{Peer: q.Peer, Export: q.Export, State: api.AttachReady, Socket: "/run/nbd/" + q.Export, Size: uint64(v.Size)}
	if _, ok := d.attached[at.Name()]; ok {
		return at, &api.Error{Code: api.CodeExists, Message: "attached already"}
	}
	d.attached[at.Name()] = at
	return at, nil
}

func (d *double) Detach(_ context.Context, peer, export string, _ bool) error {
	if err := d.enter("Detach"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.attached[peer+"/"+export]; !ok {
		return &api.Error{Code: api.CodeNotFound, Message: "not attached"}
	}
	delete(d.attached, peer+"/"+export)
	return nil
}
