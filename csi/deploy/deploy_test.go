package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/ironwarp/ironwarp/csi/driver"
)

// kinds are the types of the objects; the others are no part of Kubernetes itself.
var kinds = map[string]func() any{
	"v1/Namespace":                                    func() any { return new(corev1.Namespace) },
	"v1/ServiceAccount":                               func() any { return new(corev1.ServiceAccount) },
	"v1/Pod":                                          func() any { return new(corev1.Pod) },
	"v1/PersistentVolumeClaim":                        func() any { return new(corev1.PersistentVolumeClaim) },
	"apps/v1/Deployment":                              func() any { return new(appsv1.Deployment) },
	"apps/v1/DaemonSet":                               func() any { return new(appsv1.DaemonSet) },
	"rbac.authorization.k8s.io/v1/Role":               func() any { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1/ClusterRole":        func() any { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1/RoleBinding":        func() any { return new(rbacv1.RoleBinding) },
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": func() any { return new(rbacv1.ClusterRoleBinding) },
	"storage.k8s.io/v1/CSIDriver":                     func() any { return new(storagev1.CSIDriver) },
	"storage.k8s.io/v1/StorageClass":                  func() any { return new(storagev1.StorageClass) },
	"snapshot.storage.k8s.io/v1/VolumeSnapshotClass": func() any {
		return new(struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
			Driver           string
			DeletionPolicy   string
		})
	},
}

// objects are all objects of the manifests, decoded strictly: a key that Kubernetes does not know is an error.
func objects(t *testing.T) (list []any) {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob("examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, examples...) {
		if name == "kustomization.yaml" {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(src)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var head struct{ APIVersion, Kind string }
			if err := sigsyaml.Unmarshal(doc, &head); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			make, ok := kinds[head.APIVersion+"/"+head.Kind]
			if !ok {
				t.Errorf("%s: no such kind: %+v", name, head)
				continue
			}
			o := make()
			if err := sigsyaml.UnmarshalStrict(doc, o); err != nil {
				t.Errorf("%s: %s: %v", name, head.Kind, err)
			}
			list = append(list, o)
		}
	}
	return list
}

// of are the objects of one type.
func of[T any](list []any) (found []*T) {
	for _, o := range list {
		if v, ok := o.(*T); ok {
			found = append(found, v)
		}
	}
	return found
}

// pods are the pods that the manifests deploy, by the names of what deploys them.
func pods(list []any) map[string]corev1.PodSpec {
	m := make(map[string]corev1.PodSpec)
	for _, d := range of[appsv1.Deployment](list) {
		m[d.Name] = d.Spec.Template.Spec
	}
	for _, d := range of[appsv1.DaemonSet](list) {
		m[d.Name] = d.Spec.Template.Spec
	}
	return m
}

// Each image has a version, volumes are declared where they are mounted, and every sidecar reaches the plugin's socket.
func TestPodsAreWhole(t *testing.T) {
	list := objects(t)
	versioned := regexp.MustCompile(`^[a-z0-9./-]+:v\d+\.\d+\.\d+$`)
	kustomization, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources []string
		Images    []struct{ Name, NewName, NewTag string }
	}
	if err := sigsyaml.Unmarshal(kustomization, &k); err != nil {
		t.Fatal(err)
	}
	for _, r := range k.Resources {
		if _, err := os.Stat(r); err != nil {
			t.Error(err)
		}
	}
	for name, p := range pods(list) {
		declared := make(map[string]bool)
		for _, v := range p.Volumes {
			declared[v.Name] = true
		}
		for _, c := range p.Containers {
			image := c.Image
			for _, i := range k.Images {
				if i.Name == image {
					image = i.NewName + ":" + i.NewTag
				}
			}
			if !versioned.MatchString(image) {
				t.Errorf("%s: image %s of %s has no version", name, image, c.Name)
			}
			socket := false
			for _, m := range c.VolumeMounts {
				socket = socket || m.MountPath == "/csi"
				if !declared[m.Name] {
					t.Errorf("%s: %s mounts %s, which is no volume", name, c.Name, m.Name)
				}
				if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && (c.SecurityContext == nil || c.SecurityContext.Privileged == nil || !*c.SecurityContext.Privileged) {
					t.Errorf("%s: %s propagates mounts, which only a privileged container may", name, c.Name)
				}
			}
			if !socket {
				t.Errorf("%s: %s does not reach the socket", name, c.Name)
			}
			if c.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: %s asks for no memory", name, c.Name)
			}
		}
	}
	if p := pods(list)["ironwarp-csi-node"]; !slices.ContainsFunc(p.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Args, "--kubelet-registration-path=/var/lib/kubelet/plugins/"+driver.Name+"/csi.sock")
	}) || !slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && v.HostPath.Path == "/var/lib/kubelet/plugins/"+driver.Name
	}) {
		t.Errorf("the kubelet is not led to the plugin's socket of %s", driver.Name)
	}
}

// What is not privileged by need has no rights; and the kubelet asks the plugins whether they are live.
func TestContainersHaveFewRights(t *testing.T) {
	for name, p := range pods(objects(t)) {
		if p.PriorityClassName == "" || len(p.Tolerations) == 0 || p.NodeSelector["kubernetes.io/os"] != "linux" {
			t.Errorf("%s: priority %q, tolerations %v, nodes %v", name, p.PriorityClassName, p.Tolerations, p.NodeSelector)
		}
		for _, c := range p.Containers {
			s := c.SecurityContext
			if s == nil || s.Privileged != nil && (name != "ironwarp-csi-node" || c.Name != "plugin") {
				t.Errorf("%s: the rights of %s are %+v", name, c.Name, s)
			} else if s.Privileged == nil && (s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0) {
				t.Errorf("%s: the rights of %s are %+v", name, c.Name, s)
			}
			if c.Image != "ironwarp-csi" {
				continue
			}
			endpoint := c.Args[slices.IndexFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--endpoint=") })]
			for what, probe := range map[string]*corev1.Probe{driver.ProbeLive: c.LivenessProbe, driver.ProbeReady: c.ReadinessProbe} {
				if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command, []string{"/usr/bin/ironwarp-csi", "--probe=" + what, endpoint}) {
					t.Errorf("%s: whether %s is %s is asked by %+v", name, c.Name, what, probe)
				}
			}
		}
		for _, v := range p.Volumes {
			if v.HostPath != nil && (v.HostPath.Type == nil || *v.HostPath.Type == corev1.HostPathUnset) {
				t.Errorf("%s: %s has no type", name, v.HostPath.Path)
			}
		}
	}
}

// The sidecars are of the versions with which TestCluster of the driver follows docs/kubernetes.md.
func TestSidecarsAreThoseThatWereTested(t *testing.T) {
	mod, err := os.ReadFile("../driver/testdata/cluster/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	tested := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\tgithub\.com/kubernetes-csi/external-([a-z]+)/v\d+ (v[0-9.]+)( // indirect)?$`).FindAllStringSubmatch(string(mod), -1) {
		tested["registry.k8s.io/sig-storage/csi-"+m[1]+":"+m[2]] = m[1]
	}
	for _, c := range pods(objects(t))["ironwarp-csi-controller"].Containers {
		if c.Image != "ironwarp-csi" && tested[c.Image] != c.Name {
			t.Errorf("%s is %s, and these were tested: %v", c.Name, c.Image, tested)
		}
	}
	if len(tested) != 4 {
		t.Errorf("%v", tested)
	}
}

// The plugin takes the arguments that the manifests give it.
func TestArgumentsExist(t *testing.T) {
	main, err := os.ReadFile("../cmd/ironwarp-csi/main.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for name, p := range pods(objects(t)) {
		for _, c := range p.Containers {
			if c.Image != "ironwarp-csi" {
				continue
			}
			for _, a := range c.Args {
				flag, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
				if seen++; !bytes.Contains(main, []byte(`"`+flag+`"`)) {
					t.Errorf("%s: the plugin has no flag %s", name, flag)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no plugin is deployed")
	}
}

func TestNamesOfTheDriver(t *testing.T) {
	list := objects(t)
	d, s := of[storagev1.CSIDriver](list), of[storagev1.StorageClass](list)
	if len(d) != 1 || d[0].Name != driver.Name || d[0].Spec.AttachRequired == nil || !*d[0].Spec.AttachRequired {
		t.Errorf("%+v", d)
	}
	for _, s := range s {
		if s.Provisioner != driver.Name {
			t.Errorf("%s: provisioner %s", s.Name, s.Provisioner)
		}
		if err := driver.CheckParameters(s.Parameters); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
	src, err := os.ReadFile("examples/snapshotclass.yaml")
	if err != nil || !bytes.Contains(src, []byte("\ndriver: "+driver.Name+"\n")) {
		t.Errorf("%s, %v", src, err)
	}
}

// The service account of the controller may do what its sidecars do, as their own documents say; that of the node may do nothing.
func TestRBACCoversTheSidecars(t *testing.T) {
	list := objects(t)
	granted := make(map[string][]rbacv1.PolicyRule)
	for _, b := range of[rbacv1.ClusterRoleBinding](list) {
		for _, r := range of[rbacv1.ClusterRole](list) {
			if r.Name == b.RoleRef.Name {
				granted[b.Subjects[0].Name] = append(granted[b.Subjects[0].Name], r.Rules...)
			}
		}
	}
	for _, b := range of[rbacv1.RoleBinding](list) {
		for _, r := range of[rbacv1.Role](list) {
			if r.Name == b.RoleRef.Name {
				granted[b.Subjects[0].Name] = append(granted[b.Subjects[0].Name], r.Rules...)
			}
		}
	}
	may := func(account, verb, resource string) bool {
		name, group, _ := strings.Cut(resource, ".")
		return slices.ContainsFunc(granted[account], func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, name) && slices.Contains(r.Verbs, verb)
		})
	}
	const watch = "get list watch"
	for sidecar, rules := range map[string]map[string]string{
		"csi-provisioner": {
			"persistentvolumes": watch + " create patch delete", "persistentvolumeclaims": watch + " update", "events": "list watch create update patch", "nodes": watch,
			"storageclasses.storage.k8s.io": watch, "csinodes.storage.k8s.io": watch, "volumeattachments.storage.k8s.io": watch, "volumeattributesclasses.storage.k8s.io": watch,
			"volumesnapshots.snapshot.storage.k8s.io": watch + " update", "volumesnapshotcontents.snapshot.storage.k8s.io": "get list", "leases.coordination.k8s.io": watch + " create update delete",
		},
		"csi-attacher": {
			"persistentvolumes": watch + " patch", "csinodes.storage.k8s.io": watch, "volumeattachments.storage.k8s.io": watch + " patch", "volumeattachments/status.storage.k8s.io": "patch",
		},
		"csi-resizer": {
			"persistentvolumes": watch + " patch", "persistentvolumeclaims": watch, "persistentvolumeclaims/status": "patch", "pods": watch, "events": "list watch create update patch",
			"volumeattributesclasses.storage.k8s.io": watch,
		},
		"csi-snapshotter": {
			"events": "list watch create update patch", "volumesnapshotclasses.snapshot.storage.k8s.io": watch, "volumesnapshotcontents.snapshot.storage.k8s.io": watch + " update patch",
			"volumesnapshotcontents/status.snapshot.storage.k8s.io": "update patch",
		},
	} {
		for resource, verbs := range rules {
			for verb := range strings.FieldsSeq(verbs) {
				if !may("ironwarp-csi-controller", verb, resource) {
					t.Errorf("%s may not %s %s", sidecar, verb, resource)
				}
			}
		}
		if !slices.ContainsFunc(pods(list)["ironwarp-csi-controller"].Containers, func(c corev1.Container) bool { return strings.Contains(c.Image, "/"+sidecar+":") }) {
			t.Errorf("%s is not deployed", sidecar)
		}
	}
	if len(granted["ironwarp-csi-node"]) != 0 || may("ironwarp-csi-controller", "get", "secrets") {
		t.Errorf("more is granted than is needed: %+v", granted)
	}
	for name, p := range pods(list) {
		if !slices.ContainsFunc(of[corev1.ServiceAccount](list), func(a *corev1.ServiceAccount) bool { return a.Name == p.ServiceAccountName }) {
			t.Errorf("%s: there is no service account %q", name, p.ServiceAccountName)
		}
	}
}
