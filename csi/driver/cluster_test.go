package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/loopfs"
)

// TestCluster follows docs/kubernetes.md in a cluster without kubelets: an API server, Kubernetes' own controllers and scheduler, and
// the sidecars that the manifests name, each with no other rights than its service account has. A claim becomes a volume on the
// storage host and is attached to the node where its pod is; it is snapshotted, cloned, grown, moved, taken from a node that is
// dead, and deleted.
func TestCluster(t *testing.T) {
	k := newControlPlane(t)
	page := readPage(t)
	store, nodes := newStore(t, "driver: file, path: '"+loopfs.Mount(t, "xfs", 64<<30)+"'", "node1", "node2")
	c := &cluster{controlPlane: k, store: store, running: make(map[string]bool)}
	for _, n := range nodes {
		c.join(n)
	}
	c.sh("kubectl apply -k " + c.folderOf("client/v8") + "/config/crd")

	// 3. Deploy the driver, and 4. claim a volume.
	c.follow(page["3. Deploy the driver"])
	c.sh("kubectl label node node2 ironwarp.org/node=true")
	c.kubelet(nodes)
	c.sh("kubectl apply -f csi/deploy/examples/snapshotclass.yaml")
	c.sh("kubectl apply -f " + c.folderOf("v8") + "/deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml")
	c.start("snapshot-controller", c.program("snapshot-controller"), "--kubeconfig="+c.token("kube-system", "snapshot-controller"))
	c.follow(page["4. Claim a volume"])
	c.is("pvc/data", ".status.phase", "Bound")
	first, second := c.attached("writer", nodes)
	v := c.volume("data")
	if v.Size != 10<<30 || v.QoS.IOPS != 2000 || v.Pool != "fast" {
		t.Errorf("the volume of the claim is %+v", v)
	}

	// A snapshot, and a clone of it that gets a claim of its own.
	c.apply(snapshotOfData)
	c.is("volumesnapshot/before", ".status.readyToUse", "true")
	c.is("pvc/copy", ".status.phase", "Bound")
	c.attached("reader", nodes)
	if clone := c.volume("copy"); clone.Source == "" || clone.Size != 10<<30 {
		t.Errorf("the clone is %+v", clone)
	}

	// The storage class lets claims grow; the kubelet grows the file system.
	c.sh(`kubectl patch pvc data -p '{"spec":{"resources":{"requests":{"storage":"12Gi"}}}}'`)
	c.is("pv/"+c.claim("data").Spec.VolumeName, ".spec.capacity.storage", "12Gi")
	if v := c.volume("data"); v.Size != 12<<30 {
		t.Errorf("the grown volume has %d bytes", v.Size)
	}

	// The pod ends, and comes back on the other node.
	example, err := os.ReadFile("../deploy/examples/claim.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, pod, _ := strings.Cut(string(example), "\n---\n")
	c.sh("kubectl delete pod writer --force --grace-period=0; kubectl cordon " + first)
	c.eventually("the volume is taken from "+first, func() bool { return len(c.volume("data").Allow) == 0 })
	c.apply(pod)
	if now, _ := c.attached("writer", nodes); now != second {
		t.Errorf("the pod is on %s", now)
	}

	// That node dies for the cluster, while it goes on writing. What it writes after the volume was taken from it is refused.
	c.sh("kubectl uncordon " + first)
	lost := nodes[slices.IndexFunc(nodes, func(h *host) bool { return h.name == second })]
	before := c.volume("data")
	if _, err := lost.api.Attach(t.Context(), api.AttachRequest{Peer: "store", Export: before.Export}, nil); err != nil {
		t.Fatal(err)
	}
	disk := lost.open(before.Export)
	if err := disk.write(0, content(1)); err != nil {
		t.Fatal(err)
	}
	c.ready(second, "False")
	c.sh("kubectl taint node " + second + " node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	c.eventually("the volume is taken from the dead node", func() bool { return len(c.volume("data").Allow) == 0 })
	if err := disk.write(0, content(2)); err == nil {
		t.Error("the dead node still writes to the volume that was taken from it")
	}
	if after := c.volume("data"); after.Generation <= before.Generation {
		t.Errorf("the dead node was not fenced: generation %d, and before %d", after.Generation, before.Generation)
	}
	c.sh("kubectl wait --timeout=" + clusterTime.String() + " --for=delete pod/writer")
	c.apply(pod)
	if now, _ := c.attached("writer", nodes); now != first {
		t.Errorf("the pod is on %s", now)
	}

	// What is deleted is gone on the storage host, too.
	c.sh("kubectl delete pod --all --force --grace-period=0; kubectl delete pvc --all --wait=false; kubectl delete volumesnapshot --all --wait=false")
	for _, kind := range []string{"volumeattachment", "pvc", "pv", "volumesnapshot", "volumesnapshotcontent"} {
		c.gone(kind)
	}
	if left, err := store.api.Volumes(t.Context(), ""); err != nil || len(left) != 0 {
		t.Errorf("%+v, %v", left, err)
	}

	// No sidecar asked for what its service account may not do, but for snapshots of groups, which the driver does not make.
	denied := regexp.MustCompile(`(?m)^.*(is forbidden|cannot (get|list|watch|create|update|patch|delete) resource).*$`)
	for _, name := range c.logs {
		for _, d := range denied.FindAllString(c.log(name), -1) {
			if strings.HasPrefix(name, "ironwarp-") && !strings.Contains(d, "groupsnapshot.storage.k8s.io") {
				t.Errorf("%s: %s", name, d)
			}
		}
	}
}

const snapshotOfData = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before, namespace: default}
spec: {volumeSnapshotClassName: ironwarp, source: {persistentVolumeClaimName: data}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: copy, namespace: default}
spec:
  storageClassName: ironwarp
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 10Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}
---
apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: default}
spec:
  containers: [{name: reader, image: 'debian:12-slim', volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: copy}}]
`

// cluster is a control plane whose nodes have daemons, but no kubelet.
type cluster struct {
	*controlPlane
	store   *host
	running map[string]bool // the containers that run
}

// join makes a host's node. It is ready, and leaves attaching to the cluster's controller, as its kubelet would say.
func (c *cluster) join(h *host) {
	c.Helper()
	c.apply(fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {kubernetes.io/os: linux, kubernetes.io/hostname: %[1]s},\n"+
		"  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: 'true'}}\n", h.name))
	c.sh(fmt.Sprintf(`kubectl patch node %s --subresource=status -p '{"status":{"capacity":{"cpu":"8","memory":"16Gi","pods":"100"},"allocatable":{"cpu":"8","memory":"16Gi","pods":"100"}}}'`, h.name))
	c.ready(h.name, "True")
}

// ready says whether a node is.
func (c *cluster) ready(node, value string) {
	c.Helper()
	c.sh(fmt.Sprintf(`now=$(date -u +%%Y-%%m-%%dT%%H:%%M:%%SZ)
kubectl patch node %s --subresource=status -p '{"status":{"conditions":[{"type":"Ready","status":"%s","reason":"Test","lastHeartbeatTime":"'$now'","lastTransitionTime":"'$now'"}]}}'`, node, value))
}

// follow runs the commands of a block of the page, but for those that build and push the image.
func (c *cluster) follow(block []string) {
	c.Helper()
	if len(block) == 0 {
		c.Fatal("the page has no such block")
	}
	for _, line := range block {
		if strings.HasPrefix(line, "kubectl ") {
			c.sh(line)
		} else if line != "make csi" && !strings.HasPrefix(line, "docker ") {
			c.Errorf("nobody follows %q", line)
		}
	}
}

// readPage is the commands of docs/kubernetes.md by their sections.
func readPage(t *testing.T) map[string][]string {
	t.Helper()
	src, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	page, section, in := make(map[string][]string), "", false
	for line := range strings.Lines(string(src)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "```") {
			in = line == "```sh"
		} else if in {
			page[section] = append(page[section], line)
		} else if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
	}
	return page
}

// kubelet runs the containers of the pods that are scheduled to the nodes, which are the controller's and one of the node plugin's on each
// node, and says so, and has what the driver says of each node in the cluster, as the registrar does.
func (c *cluster) kubelet(nodes []*host) {
	c.Helper()
	var pods corev1.PodList
	c.eventually("the pods of the driver are scheduled", func() bool {
		pods = get[corev1.PodList](c.controlPlane, "pods -n ironwarp")
		return len(pods.Items) == len(nodes)+1 && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
	})
	for _, p := range pods.Items {
		h := nodes[slices.IndexFunc(nodes, func(h *host) bool { return h.name == p.Spec.NodeName })]
		for _, container := range p.Spec.Containers {
			c.run(p, container, h)
		}
		if p.Spec.ServiceAccountName != "ironwarp-csi-node" {
			if h.name != "node1" {
				c.Errorf("the controller is on %s", h.name)
			}
			continue
		}
		info := call(c.T, filepath.Join(c.mountsOf(p, h)["/csi"], "csi.sock"))
		var id *csi.NodeGetInfoResponse
		c.eventually("the plugin of "+h.name+" answers", func() (ok bool) {
			var err error
			id, err = info.NodeGetInfo(c.Context(), &csi.NodeGetInfoRequest{})
			return err == nil
		})
		c.apply(fmt.Sprintf("apiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {name: %s}\nspec: {drivers: [{name: %s, nodeID: %s, topologyKeys: []}]}\n", h.name, Name, id.GetNodeId()))
	}
}

// mountsOf are the folders that stand for the mounts of a pod's containers, by their paths there.
func (c *cluster) mountsOf(p corev1.Pod, h *host) map[string]string {
	c.Helper()
	m := make(map[string]string)
	for _, container := range p.Spec.Containers {
		for _, v := range container.VolumeMounts {
			m[v.MountPath] = c.path(fmt.Sprintf("%s-%s", p.Spec.ServiceAccountName[len("ironwarp-csi-"):], h.name))
			if v.Name == "daemon" {
				m[v.MountPath] = filepath.Join(h.dir, "run")
			}
			if err := os.MkdirAll(m[v.MountPath], 0o700); err != nil {
				c.Fatal(err)
			}
		}
	}
	return m
}

// run runs a container's program, with its arguments. A sidecar has the rights of the pod's service account.
func (c *cluster) run(p corev1.Pod, container corev1.Container, h *host) {
	c.Helper()
	if container.Name == "registrar" {
		return // it talks to the kubelet
	}
	image, _, _ := strings.Cut(container.Image[strings.LastIndexByte(container.Image, '/')+1:], ":")
	mounts := c.mountsOf(p, h)
	var args []string
	for _, a := range container.Args {
		for at, dir := range mounts {
			a = strings.Replace(a, at+"/", dir+"/", 1)
		}
		args = append(args, a)
	}
	switch {
	case image == "ironwarp-csi" && p.Spec.ServiceAccountName == "ironwarp-csi-node":
		for _, e := range container.Env {
			if e.Name == "NODE_NAME" && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
				args = append(args, "--node-id="+h.name)
			}
		}
		args = append(args, "--base-dir="+mounts["/csi"], "--state-dir="+filepath.Join(mounts["/csi"], "staged"))
	case image != "ironwarp-csi":
		args = append(args, "--kubeconfig="+c.token(p.Namespace, p.Spec.ServiceAccountName))
	}
	c.start(fmt.Sprintf("%s-%s-%s", p.Spec.ServiceAccountName, h.name, container.Name), c.program(image), args...)
}

func (c *cluster) claim(name string) corev1.PersistentVolumeClaim {
	c.Helper()
	return get[corev1.PersistentVolumeClaim](c.controlPlane, "pvc "+name)
}

// volume is the volume of a claim on the storage host, by its handle.
func (c *cluster) volume(claim string) api.Volume {
	c.Helper()
	pv := get[corev1.PersistentVolume](c.controlPlane, "pv "+c.claim(claim).Spec.VolumeName)
	id, err := parseID(pv.Spec.CSI.VolumeHandle)
	if err != nil || pv.Spec.CSI.Driver != Name {
		c.Fatalf("%+v: %v", pv.Spec.CSI, err)
	}
	v, err := c.store.api.Volume(c.Context(), "", id.name)
	if err != nil {
		c.Fatal(err)
	}
	return v
}

// attached waits until the volumes of a pod are attached to its node, as Kubernetes and the storage host see it, and returns the node and
// the other one.
func (c *cluster) attached(pod string, nodes []*host) (at, other string) {
	c.Helper()
	c.is("pod/"+pod, `.status.conditions[?(@.type=="PodScheduled")].status`, "True")
	p := get[corev1.Pod](c.controlPlane, "pod "+pod)
	claim := p.Spec.Volumes[slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })].PersistentVolumeClaim.ClaimName
	at = p.Spec.NodeName
	c.eventually("the volume of "+pod+" is attached to "+at, func() bool {
		name := c.claim(claim).Spec.VolumeName
		list := get[storagev1.VolumeAttachmentList](c.controlPlane, "volumeattachment").Items
		return slices.ContainsFunc(list, func(a storagev1.VolumeAttachment) bool {
			return a.Spec.Attacher == Name && a.Spec.NodeName == at && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == name && a.Status.Attached
		})
	})
	if v := c.volume(claim); len(v.Allow) != 1 || v.Allow[0].Peer != at || v.Allow[0].ReadOnly || v.Allow[0].Leaving {
		c.Errorf("the volume of %s is published to %+v", pod, v.Allow)
	}
	for _, n := range nodes {
		if n.name != at {
			other = n.name
		}
	}
	return at, other
}
