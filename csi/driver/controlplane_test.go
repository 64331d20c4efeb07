package driver

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// programsVar names a folder for the cluster's programs, which testdata/cluster lists, and for ironwarp-csi. They are built there, in ten minutes
// the first time.
const programsVar = "IRONWARP_KUBE"

// clusterTime bounds waiting for the cluster: controllers retry after up to a minute or two.
const clusterTime = 4 * time.Minute

// controlPlane is a cluster's API server over etcd, with the controllers and the scheduler of Kubernetes, at a loopback address.
type controlPlane struct {
	*testing.T
	dir, programs, server string
	logs                  []string
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	k := &controlPlane{T: t, dir: shortDir(t), programs: os.Getenv(programsVar)}
	if k.programs == "" {
		t.Skipf("set %s to the path of a folder to have a cluster's programs built there, and run", programsVar)
	}
	k.sh("CGO_ENABLED=0 go build -C csi -trimpath -buildvcs=false -o '" + k.programs + "/ironwarp-csi' ./cmd/ironwarp-csi")
	k.sh("go build -C csi/driver/testdata/cluster -trimpath -buildvcs=false -ldflags '-s -w' -o '" + k.programs + "/' tool")
	store, peers, secure := iwarptest.FreePort(t), iwarptest.FreePort(t), iwarptest.FreePort(t)
	k.server = fmt.Sprintf("https://127.0.0.1:%d", secure)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	k.file("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	k.file("tokens", []byte("admins,admin,admin,system:masters\n"))
	k.start("etcd", k.program("server"), "--data-dir="+k.path("etcd"), "--unsafe-no-fsync", fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", store), fmt.Sprintf("--advertise-client-urls=http://127.0.0.1:%d", store),
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", peers), "--log-level=warn") // module go.etcd.io/etcd/server
	k.start("kube-apiserver", k.program("kube-apiserver"), fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", store), fmt.Sprintf("--secure-port=%d", secure), "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--cert-dir="+k.path("certs"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+k.path("sa.key"),
		"--service-account-signing-key-file="+k.path("sa.key"), "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file="+k.path("tokens"), "--allow-privileged=true", "--profiling=false")
	k.kubeconfig("admin", "admins")
	k.eventually("the API server is ready", func() bool {
		out, err := k.command("kubectl get --raw /readyz").CombinedOutput()
		return err == nil && string(out) == "ok"
	})
	admin := "--kubeconfig=" + k.path("admin")
	k.start("kube-controller-manager", k.program("kube-controller-manager"), admin, "--service-account-private-key-file="+k.path("sa.key"), "--leader-elect=false", "--secure-port=0",
		// Nobody renews the leases of the nodes, which have no kubelet.
		"--node-monitor-grace-period=2h", "--node-startup-grace-period=2h")
	k.start("kube-scheduler", k.program("kube-scheduler"), admin, "--leader-elect=false", "--secure-port=0")
	k.eventually("pods have a service account", func() bool { return k.command("kubectl get serviceaccount default").Run() == nil })
	return k
}

func (k *controlPlane) path(name string) string { return filepath.Join(k.dir, name) }

func (k *controlPlane) program(name string) string { return filepath.Join(k.programs, name) }

func (k *controlPlane) file(name string, b []byte) {
	k.Helper()
	if err := os.WriteFile(k.path(name), b, 0o600); err != nil {
		k.Fatal(err)
	}
}

// start runs a program until the test ends, with its log in the cluster's folder.
func (k *controlPlane) start(name, program string, args ...string) {
	k.Helper()
	log, err := os.Create(k.path(name + ".log"))
	if err != nil {
		k.Fatal(err)
	}
	defer log.Close()
	k.logs = append(k.logs, name)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, k.dir
	// Whatever becomes of the test, nothing of the cluster outlives it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if b, err := os.ReadFile(log.Name()); err == nil && k.Failed() {
			k.Logf("the end of the log of %s:\n%s", name, b[max(0, len(b)-6000):])
		}
	})
}

// kubeconfig writes the configuration of a client that has a token.
func (k *controlPlane) kubeconfig(name, token string) {
	k.Helper()
	k.file(name, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: '%s', certificate-authority: '%s'}}]
users: [{name: user, user: {token: '%s'}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
`, k.server, k.path("certs/apiserver.crt"), token))
}

// command is a command of a shell at the top of the repository, where kubectl talks to the cluster as its administrator.
func (k *controlPlane) command(line string) *exec.Cmd {
	cmd := exec.CommandContext(k.Context(), "sh", "-ec", line)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "PATH="+k.programs+":"+os.Getenv("PATH"), "KUBECONFIG="+k.path("admin"), "KUBECACHEDIR="+k.dir)
	return cmd
}

// sh runs such a command, which must not fail.
func (k *controlPlane) sh(line string) string {
	k.Helper()
	var stderr bytes.Buffer
	cmd := k.command(line)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		k.Fatalf("%s: %v\n%s%s", line, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// folderOf is the folder of a module of kubernetes-csi/external-snapshotter.
func (k *controlPlane) folderOf(module string) string {
	k.Helper()
	return k.sh("go list -C csi/driver/testdata/cluster -m -f '{{.Dir}}' github.com/kubernetes-csi/external-snapshotter/" + module)
}

// apply applies a manifest.
func (k *controlPlane) apply(manifest string) {
	k.Helper()
	k.file("manifest.yaml", []byte(manifest))
	k.sh("kubectl apply -f " + k.path("manifest.yaml"))
}

// get decodes what kubectl gets.
func get[T any](k *controlPlane, what string) (v T) {
	k.Helper()
	if err := json.Unmarshal([]byte(k.sh("kubectl get -o json "+what)), &v); err != nil {
		k.Fatal(err)
	}
	return v
}

// is waits until a field of an object has a value.
func (k *controlPlane) is(object, field, value string) {
	k.Helper()
	k.sh(fmt.Sprintf("kubectl wait --timeout=%s --for=jsonpath='{%s}'='%s' %s || { kubectl describe %s; kubectl get events -A; exit 1; }", clusterTime, field, value, object, object))
}

// gone waits until no object of a kind is left.
func (k *controlPlane) gone(kind string) {
	k.Helper()
	k.eventually("there is no "+kind, func() bool { return k.sh("kubectl get -A -o name "+kind) == "" })
}

func (k *controlPlane) eventually(what string, f func() bool) {
	k.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(clusterTime); !f(); {
		select {
		case <-end:
			k.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

// token is a kubeconfig with the token of a service account.
func (k *controlPlane) token(namespace, account string) (file string) {
	k.Helper()
	k.eventually("the service account "+account+" gets a token", func() bool {
		out, err := k.command("kubectl create token --duration=2h -n " + namespace + " " + account).Output()
		if err == nil {
			k.kubeconfig(account, strings.TrimSpace(string(out)))
		}
		return err == nil
	})
	return k.path(account)
}

// log is what a program has said.
func (k *controlPlane) log(name string) string {
	k.Helper()
	b, err := os.ReadFile(k.path(name + ".log"))
	if err != nil {
		k.Fatal(err)
	}
	return string(b)
}
