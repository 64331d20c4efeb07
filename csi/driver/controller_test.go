package driver

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func capability(block bool, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}, AccessType: &csi.VolumeCapability_Mount{Mount: new(csi.VolumeCapability_MountVolume)}}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: new(csi.VolumeCapability_BlockVolume)}
	}
	return c
}

const (
	oneNode   = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	onePod    = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	readers   = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	manyNodes = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

func newController(d *double, hosts ...Host) *Controller {
	if hosts == nil {
		hosts = []Host{{Name: "store"}}
	}
	return &Controller{daemon: d, hosts: hosts}
}

// wants checks the code of an answer.
func wants(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v, want %v: %v", what, got, want, err)
	}
}

func (c *Controller) makes(t *testing.T, name string, caps ...*csi.VolumeCapability) string {
	t.Helper()
	if caps == nil {
		caps = []*csi.VolumeCapability{capability(false, oneNode)}
	}
	v, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: mega}})
	if err != nil {
		t.Fatal(err)
	}
	return v.GetVolume().GetVolumeId()
}

func (c *Controller) publishes(t *testing.T, id, node string, cap *csi.VolumeCapability) error {
	t.Helper()
	_, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: cap})
	return err
}

// A host that does not answer, or that is nobody's peer any more, may have the volume still, and a node may write to it: nothing
// about it succeeds.
func TestUnreachableHostIsNoProofThatAVolumeIsGone(t *testing.T) {
	for what, tc := range map[string]struct {
		lose func(*double)
		want codes.Code
	}{
		"it does not answer":                              {func(d *double) { d.away["store"] = true }, codes.Unavailable},
		"its peer was removed from the controller's host": {func(d *double) { delete(d.hosts, "store") }, codes.Unavailable},
		"its pool is managed by others now": {func(d *double) {
			d.hosts["store"], d.pools["store"] = make(map[string]api.Volume), []api.Pool{{Name: "other"}}
		}, codes.FailedPrecondition},
	} {
		d := newDouble()
		c := newController(d)
		id := c.makes(t, "a")
		if err := c.publishes(t, id, "node", capability(false, oneNode)); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		tc.lose(d)
		d.mu.Unlock()
		ctx := t.Context()
		_, err := c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
		wants(t, what+": unpublish", err, tc.want)
		_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		wants(t, what+": delete", err, tc.want)
		_, err = c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		wants(t, what+": delete a snapshot", err, tc.want)
		if tc.want == codes.Unavailable {
			_, err = c.ListVolumes(ctx, new(csi.ListVolumesRequest))
			wants(t, what+": list", err, tc.want)
			_, err = c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{capability(false, oneNode)}})
			wants(t, what+": create", err, tc.want)
		}
	}
	// A controller with other hosts, as after a typing error in its deployment.
	d := newDouble()
	id := newController(d).makes(t, "a")
	d.hosts["other"] = make(map[string]api.Volume)
	c := newController(d, Host{Name: "other"})
	_, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
	wants(t, "another controller: unpublish", err, codes.FailedPrecondition)
	_, err = c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	wants(t, "another controller: delete", err, codes.FailedPrecondition)
}

// What is being removed, and is listed until its storage is gone, is no answer to who asks for one of its name.
func TestWhatIsBeingRemovedIsNotFoundAgain(t *testing.T) {
	d := newDouble()
	c := newController(d)
	source := c.makes(t, "source")
	ctx := t.Context()
	create := func() error {
		_, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "vol", VolumeCapabilities: []*csi.VolumeCapability{capability(false, oneNode)}, CapacityRange: &csi.CapacityRange{RequiredBytes: mega}})
		return err
	}
	snapshot := func() error {
		_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: source})
		return err
	}
	wants(t, "create", create(), codes.OK)
	wants(t, "snapshot", snapshot(), codes.OK)
	made := maps.Clone(d.hosts["store"])
	for _, name := range []string{"vol", "snap"} { // as a host describes them whose removal has begun
		v := made[name]
		v.Export, v.Problem = "", &api.Error{Code: api.CodeInUse, Message: name + " is being removed"}
		d.hosts["store"][name] = v
	}
	wants(t, "create while it is being removed", create(), codes.Aborted)
	wants(t, "snapshot while it is being removed", snapshot(), codes.Aborted)
	for _, name := range []string{"vol", "snap"} {
		delete(d.hosts["store"], name)
	}
	wants(t, "create when it is gone", create(), codes.OK)
	wants(t, "snapshot when it is gone", snapshot(), codes.OK)
}

// Unpublish answers when the fence has, not before, and no other call gives the volume away meanwhile.
func TestUnpublishAnswersOnlyAfterTheFence(t *testing.T) {
	d := newDouble()
	c := newController(d)
	id := c.makes(t, "a")
	if err := c.publishes(t, id, "node", capability(false, oneNode)); err != nil {
		t.Fatal(err)
	}
	wants(t, "publish to another node", c.publishes(t, id, "node2", capability(false, oneNode)), codes.FailedPrecondition)
	release := make(chan struct{})
	d.mu.Lock()
	d.hold["UnpublishVolume"] = release
	d.mu.Unlock()
	answer := make(chan error, 1)
	go func() {
		_, err := c.ControllerUnpublishVolume(context.Background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
		answer <- err
	}()
	<-d.entered
	wants(t, "publish during the fence", c.publishes(t, id, "node2", capability(false, oneNode)), codes.Aborted)
	_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	wants(t, "delete during the fence", err, codes.Aborted)
	_, err = c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
	wants(t, "unpublish during the fence", err, codes.Aborted)
	select {
	case err := <-answer:
		t.Errorf("unpublish answered (%v) before the storage host had fenced the node", err)
	default:
	}
	close(release)
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if got := d.fenced["a"]; !slices.Equal(got, []string{"node"}) {
		t.Errorf("fenced: %v", got)
	}
	if err := c.publishes(t, id, "node2", capability(false, oneNode)); err != nil {
		t.Error(err)
	}
}

// What the storage host has not confirmed is not confirmed to the orchestrator, which would give the volume to another node.
func TestFailedFenceFailsUnpublish(t *testing.T) {
	for code, want := range map[string]codes.Code{
		api.CodeTimeout: codes.DeadlineExceeded, api.CodeUnavailable: codes.Unavailable, api.CodeInternal: codes.Internal, api.CodeForbidden: codes.PermissionDenied,
		api.CodeNotFound: codes.FailedPrecondition, // it knows no such peer, and has a lease of it
	} {
		d := newDouble()
		c := newController(d)
		id := c.makes(t, "a")
		if err := c.publishes(t, id, "node", capability(false, oneNode)); err != nil {
			t.Fatal(err)
		}
		d.fail["UnpublishVolume"] = &api.Error{Code: code, Message: "not fenced"}
		_, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"})
		wants(t, code, err, want)
	}
}

// Without a node's id everybody is fenced. What is not there, or was never given to the node, is no error.
func TestUnpublishFromAll(t *testing.T) {
	d := newDouble()
	c := newController(d)
	id := c.makes(t, "a", capability(true, manyNodes))
	for _, n := range []string{"node", "node2"} {
		if err := c.publishes(t, id, n, capability(true, manyNodes)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	if got := d.fenced["a"]; !slices.Equal(got, []string{"node", "node2"}) {
		t.Errorf("fenced: %v", got)
	}
	for _, r := range []*csi.ControllerUnpublishVolumeRequest{{VolumeId: id, NodeId: "stranger"}, {VolumeId: "store/fast/none", NodeId: "node"}, {VolumeId: "nonsense", NodeId: "node"}} {
		if _, err := c.ControllerUnpublishVolume(t.Context(), r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// A call for a snapshot never removes a volume, nor the other way round: their ids look the same.
func TestDeleteRemovesOnlyWhatItIsFor(t *testing.T) {
	d := newDouble()
	c := newController(d)
	id := c.makes(t, "a")
	s, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
		t.Error(err)
	}
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: s.GetSnapshot().GetSnapshotId()}); err != nil {
		t.Error(err)
	}
	if got := slices.Sorted(maps.Keys(d.hosts["store"])); !slices.Equal(got, []string{"a", "s"}) {
		t.Errorf("left: %v", got)
	}
	_, err = c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: s.GetSnapshot().GetSnapshotId(), NodeId: "node", VolumeCapability: capability(true, oneNode)})
	wants(t, "publish a snapshot", err, codes.NotFound)
}

// A repeated call finds the volume on the host where the first one made it, even if another is the first choice by now.
func TestRepeatedCreateFindsTheVolume(t *testing.T) {
	d := newDouble()
	d.hosts["big"], d.pools["big"] = make(map[string]api.Volume), []api.Pool{{Name: "fast", Free: 1 << 40}}
	d.pools["store"][0].Free = 0
	c := newController(d, Host{Name: "store"}, Host{Name: "big"})
	if id := c.makes(t, "a"); id != "big/fast/a" {
		t.Fatalf("made %s", id)
	}
	d.pools["store"][0].Free = 1 << 40
	if id := c.makes(t, "a"); id != "big/fast/a" {
		t.Errorf("made %s", id)
	}
	d.pools["store"][0].Free, d.pools["big"][0].Free = 0, 0
	_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "b", VolumeCapabilities: []*csi.VolumeCapability{capability(false, oneNode)}})
	wants(t, "no room anywhere", err, codes.ResourceExhausted)
}

func TestCreateRefuses(t *testing.T) {
	d := newDouble()
	c := newController(d)
	c.makes(t, "there")
	d.hosts["store"]["snap"] = api.Volume{Name: "snap", Kind: api.KindSnapshot, Size: mega, Pool: "fast", Source: "there"}
	caps := []*csi.VolumeCapability{capability(false, oneNode)}
	flags := func(f ...string) []*csi.VolumeCapability {
		c := capability(false, oneNode)
		c.GetMount().MountFlags = f
		return []*csi.VolumeCapability{c}
	}
	fs := func(f string) []*csi.VolumeCapability {
		c := capability(false, oneNode)
		c.GetMount().FsType = f
		return []*csi.VolumeCapability{c}
	}
	snap := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "store/fast/snap"}}}
	for what, tc := range map[string]struct {
		r    *csi.CreateVolumeRequest
		want codes.Code
	}{
		"a name that is too long":     {&csi.CreateVolumeRequest{Name: strings.Repeat("a", maxID+1), VolumeCapabilities: caps}, codes.InvalidArgument},
		"a name with an escape":       {&csi.CreateVolumeRequest{Name: "a\x1b[2J", VolumeCapabilities: caps}, codes.InvalidArgument},
		"a name that is not UTF-8":    {&csi.CreateVolumeRequest{Name: "a\xff", VolumeCapabilities: caps}, codes.InvalidArgument},
		"several writers of one ext4": {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{capability(false, manyNodes)}}, codes.InvalidArgument},
		"an unknown file system":      {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: fs("../x")}, codes.InvalidArgument},
		"a flag that is two":          {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: flags("ro,suid")}, codes.InvalidArgument},
		"a flag that binds":           {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: flags("bind")}, codes.InvalidArgument},
		"a flag that is an option":    {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: flags("-obind")}, codes.InvalidArgument},
		"a flag for suid programs":    {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: flags("suid")}, codes.InvalidArgument},
		"too many flags":              {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: flags(slices.Repeat([]string{"ro"}, maxFlags+1)...)}, codes.InvalidArgument},
		"an unknown parameter":        {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"iopps": "1"}}, codes.InvalidArgument},
		"a negative limit of I/O":     {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"iops": "-1"}}, codes.InvalidArgument},
		"an endless burst":            {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"burstSeconds": "inf"}}, codes.InvalidArgument},
		"a host of another's":         {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"host": "elsewhere"}}, codes.InvalidArgument},
		"a pool that is a path":       {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"pool": "../fast"}}, codes.InvalidArgument},
		"an unknown pool":             {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Parameters: map[string]string{"pool": "slow"}}, codes.NotFound},
		"a negative size":             {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: -1}}, codes.InvalidArgument},
		"the largest size":            {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: math.MaxInt64}}, codes.OutOfRange},
		"a range without a multiple":  {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: 4097, LimitBytes: 8191}}, codes.OutOfRange},
		"a range that is empty":       {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: 8192, LimitBytes: 4096}}, codes.OutOfRange},
		"less than its source":        {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{LimitBytes: 4096}, VolumeContentSource: snap}, codes.OutOfRange},
		"the name of a snapshot":      {&csi.CreateVolumeRequest{Name: "snap", VolumeCapabilities: caps}, codes.AlreadyExists},
		"other contents":              {&csi.CreateVolumeRequest{Name: "there", VolumeCapabilities: caps, CapacityRange: &csi.CapacityRange{RequiredBytes: mega}, VolumeContentSource: snap}, codes.AlreadyExists},
		"no source at all":            {&csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, VolumeContentSource: new(csi.VolumeContentSource)}, codes.InvalidArgument},
	} {
		_, err := c.CreateVolume(t.Context(), tc.r)
		wants(t, what, err, tc.want)
	}
	if got := slices.Sorted(maps.Keys(d.hosts["store"])); !slices.Equal(got, []string{"snap", "there"}) {
		t.Errorf("volumes: %v", got)
	}
}

// Parameters and capabilities reach the pool.
func TestCreateAsksForWhatTheClassSays(t *testing.T) {
	d := newDouble()
	c := newController(d)
	_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{capability(true, manyNodes)},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 4097}, Parameters: map[string]string{"pool": "fast", "iops": "100", "bandwidth": "1048576", "csi.storage.k8s.io/pvc/name": "claim"}})
	if err != nil {
		t.Fatal(err)
	}
	v := d.hosts["store"]["a"]
	if v.Size != 8192 || v.Writers != "shared" || v.QoS != (api.QoS{IOPS: 100, Bandwidth: 1048576}) || v.Pool != "fast" {
		t.Errorf("%+v", v)
	}
	if _, err := c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "store/fast/a", MutableParameters: map[string]string{"iops": "7"}}); err != nil {
		t.Error(err)
	}
	if v := d.hosts["store"]["a"]; v.QoS != (api.QoS{IOPS: 7}) {
		t.Errorf("%+v", v.QoS)
	}
}

// Several nodes read, or write to what was made for that; never one with a file system.
func TestAccessModes(t *testing.T) {
	d := newDouble()
	c := newController(d)
	id := c.makes(t, "ro")
	for _, n := range []string{"node", "node2"} {
		wants(t, "read on "+n, c.publishes(t, id, n, capability(false, readers)), codes.OK)
	}
	wants(t, "write where it reads", c.publishes(t, id, "node", capability(false, oneNode)), codes.AlreadyExists)
	wants(t, "several writers of a file system", c.publishes(t, id, "node", capability(false, manyNodes)), codes.InvalidArgument)
	v, err := c.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{capability(true, manyNodes)}})
	if err != nil || v.GetConfirmed() != nil || v.GetMessage() == "" {
		t.Errorf("%+v, %v", v, err)
	}
	rwx := c.makes(t, "rwx", capability(true, manyNodes))
	for _, n := range []string{"node", "node2"} {
		wants(t, "write on "+n, c.publishes(t, rwx, n, capability(true, manyNodes)), codes.OK)
	}
	if l := d.hosts["store"]["rwx"].Allow; len(l) != 2 || !l[0].Shared || l[0].ReadOnly {
		t.Errorf("%+v", l)
	}
}

func TestTopologyChoosesTheHost(t *testing.T) {
	d := newDouble()
	d.hosts["b"], d.pools["b"] = make(map[string]api.Volume), []api.Pool{{Name: "fast", Free: 1 << 40}}
	zone := func(z string) map[string]string { return map[string]string{"topology." + Name + "/zone": z} }
	c := newController(d, Host{Name: "store", Topology: zone("a")}, Host{Name: "b", Topology: zone("b")})
	caps := []*csi.VolumeCapability{capability(false, oneNode)}
	v, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: caps, AccessibilityRequirements: &csi.TopologyRequirement{
		Requisite: []*csi.Topology{{Segments: zone("a")}, {Segments: zone("b")}}, Preferred: []*csi.Topology{{Segments: zone("b")}}}})
	if err != nil || v.GetVolume().GetVolumeId() != "b/fast/v" || !maps.Equal(v.GetVolume().GetAccessibleTopology()[0].GetSegments(), zone("b")) {
		t.Errorf("%v, %v", v, err)
	}
	_, err = c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "w", VolumeCapabilities: caps, AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: zone("c")}}}})
	wants(t, "no host there", err, codes.ResourceExhausted)
	if got, err := ParseTopology("zone=b"); err != nil || !maps.Equal(got, zone("b")) {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"zone", "=b", "zone=", "a/b/c=d", "zone=b\n", "zone=b,,"} {
		if got, err := ParseTopology(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// Pages follow each other without gaps, even if the volume of the token is gone by the next one.
func TestListGoesOnAfterAVolumeThatIsGone(t *testing.T) {
	d := newDouble()
	c := newController(d)
	for _, n := range []string{"a", "b", "c", "d"} {
		c.makes(t, n)
	}
	one, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2})
	if err != nil || len(one.GetEntries()) != 2 || one.GetNextToken() == "" {
		t.Fatalf("%v, %v", one, err)
	}
	delete(d.hosts["store"], "b")
	two, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: one.GetNextToken()})
	if err != nil || len(two.GetEntries()) != 2 || two.GetEntries()[0].GetVolume().GetVolumeId() != "store/fast/c" || two.GetNextToken() != "" {
		t.Errorf("%v, %v", two, err)
	}
	_, err = c.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: -1})
	wants(t, "a negative page", err, codes.InvalidArgument)
}
