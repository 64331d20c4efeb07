package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/manage"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// asks has a peer of the station ask for the management of volumes.
func (s *station) asks(from netip.Addr, method, path string, body any) error {
	s.Helper()
	dev := must(verbs.Open(verbs.Config{}))(s)
	defer dev.Close()
	ulp := must(dev.NewULP("manager", verbs.ULPConfig{}))(s)
	request := map[string]any{"method": method, "path": path}
	if body != nil {
		request["body"] = body
	}
	answer, err := manage.Call(s.Context(), ulp, s.dialFrom(from), must(json.Marshal(request))(s), func() {})
	if err != nil {
		return err
	}
	var a struct {
		Error *api.Error `json:"error"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		s.Fatal(err)
	}
	if a.Error != nil {
		return a.Error
	}
	return nil
}

func (s *station) dialFrom(from netip.Addr) verbs.DialConfig {
	return verbs.DialConfig{Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), s.port), Transport: &transport.Config{Protector: transport.LoopbackOnly(), Local: from}}
}

// isRefused reports whether a request was refused with a code; otherwise it has to have succeeded.
func (s *station) isRefused(err error, code string) bool {
	s.Helper()
	if err != nil && !errors.Is(err, &api.Error{Code: code}) {
		s.Errorf("refused with %v, want %s", err, code)
	}
	return err != nil
}

// poolOf is the configuration of a pool in a directory of a mode.
func poolOf(t *testing.T, mode os.FileMode, more string) string {
	dir := filepath.Join(t.TempDir(), "pool")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("pools: [{name: pool, driver: file, path: %s, %s}]\n", dir, more)
}

func volume(name string) api.VolumeCreate {
	return api.VolumeCreate{Pool: "pool", Name: name, Size: 1 << 20}
}

// A peer makes volumes where it is not named, more than there may be, where others could put something, and has one that another writes to;
// and it holds on to more requests than it may have.
func TestVolumesOfAHostilePeer(t *testing.T) {
	runDaemon(t,
		daemonAttack{"a pool that names others", checks.PoolManager, poolOf(t, 0o700, "manage: [friend]"), func(s *station) bool {
			if err := s.asks(friends, "POST", "/v1/volumes", volume("good")); err != nil {
				s.Fatal(err)
			}
			err := s.asks(mallorys, "DELETE", "/v1/volumes/good", nil)
			if err != nil && !errors.Is(err, manage.ErrRefused) {
				s.Errorf("refused with %v", err)
			}
			return err == nil
		}},
		daemonAttack{"one volume too many", checks.VolumeQuota, poolOf(t, 0o700, "manage: [mallory], max_volumes: 2"), func(s *station) bool {
			for i := range 2 {
				if err := s.asks(mallorys, "POST", "/v1/volumes", volume(fmt.Sprint("v", i))); err != nil {
					s.Fatal(err)
				}
			}
			return !s.isRefused(s.asks(mallorys, "POST", "/v1/volumes", volume("v3")), api.CodeNoSpace)
		}},
		daemonAttack{"a directory to which all may write", checks.PoolDirectory, poolOf(t, 0o777, "manage: [mallory]"), func(s *station) bool {
			return !s.isRefused(s.asks(mallorys, "POST", "/v1/volumes", volume("open")), api.CodeForbidden)
		}},
		daemonAttack{"a volume that another writes to", checks.VolumeLease, poolOf(t, 0o700, "manage: [friend, mallory]"), func(s *station) bool {
			if err := errors.Join(s.asks(friends, "POST", "/v1/volumes", volume("good")), s.asks(friends, "POST", "/v1/volumes/good/publish", api.VolumePublish{})); err != nil {
				s.Fatal(err)
			}
			return !s.isRefused(s.asks(mallorys, "POST", "/v1/volumes/good/publish", api.VolumePublish{Shared: true}), api.CodeInUse)
		}},
		daemonAttack{"requests that it does not finish", checks.ManageShare, poolOf(t, 0o700, "manage: [friend, mallory]"), func(s *station) bool {
			dev := must(verbs.Open(verbs.Config{}))(s)
			defer dev.Close()
			ulp := must(dev.NewULP("manager", verbs.ULPConfig{}))(s)
			open := 0
			for range manage.MaxPeer + 1 {
				pd := must(ulp.AllocPD())(s)
				cq := must(ulp.CreateCQ(8, nil))(s)
				dial := s.dialFrom(mallorys)
				dial.PrivateData, dial.QP = []byte("IWmg\x01"), verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}
				if _, err := pd.Dial(s.Context(), dial); err == nil {
					open++
				}
			}
			if open < manage.MaxPeer {
				s.Errorf("%d requests are taken", open)
			}
			if err := s.asks(friends, "GET", "/v1/pools", nil); err != nil {
				s.Errorf("another peer: %v", err)
			}
			return open > manage.MaxPeer
		}},
	)
}

// Nothing that a manager sends is a call of another kind, or makes the host do what the API does not have.
func TestOfManagementPeersGetNothingElse(t *testing.T) {
	s := newStation(t, poolOf(t, 0o700, "manage: [mallory]"))
	for _, q := range []struct{ method, path string }{
		{"GET", "/v1/status"}, {"POST", "/v1/reload"}, {"GET", "/v1/peers"}, {"DELETE", "/v1/exports/x"}, {"GET", "/v1/volumes?peer=friend"}, {"GET", "http://friend/v1/volumes"},
		{"GET", "/v1/volumes/../status"}, {"PATCH", "/v1/volumes"}, {"GET", ""}, {"CONNECT", "/v1/volumes"}, {"GET", "/" + strings.Repeat("x", 8000)},
	} {
		if err := s.asks(mallorys, q.method, q.path, nil); err == nil {
			t.Errorf("%s %.40s is carried out", q.method, q.path)
		}
	}
	for _, q := range []api.VolumeCreate{
		{Pool: "pool", Name: "../../etc/passwd", Size: 512}, {Pool: "pool", Name: "a/b", Size: 512}, {Pool: "pool", Name: "", Size: 512}, {Pool: "pool", Name: strings.Repeat("n", 300), Size: 512},
		{Pool: "pool", Name: "\x1b[2J", Size: 512}, {Pool: "pool", Name: ".", Size: 512}, {Pool: "pool", Name: "-rf", Size: 512},
		{Pool: "pool", Name: "z", Size: 0}, {Pool: "pool", Name: "z", Size: -512}, {Pool: "pool", Name: "z", Size: 511}, {Pool: "pool", Name: "z", Size: 1 << 62},
		{Pool: "../pool", Name: "z", Size: 512}, {Pool: "pool", Name: "z", Size: 512, Writers: "all"}, {Pool: "pool", Name: "z", Size: 512, QoS: api.QoS{IOPS: -1}},
		{Pool: "pool", Name: "z", Size: 512, From: "../z"},
	} {
		if err := s.asks(mallorys, "POST", "/v1/volumes", q); err == nil {
			t.Errorf("%+v is made", q)
		}
	}
	if all, err := s.api.Volumes(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if strings.Contains(s.log.String(), "\x1b") {
		t.Error("the log has what a peer has sent to move the cursor")
	}
}
