package attack

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// What follows is no peer's attack but a fault of storage, or an administrator's
// mistake: what succeeds without the check loses acknowledged writes.

// disk is storage that has an identity and forgets what is written to it.
type disk struct{ identity block.Identity }

func newDisk() *disk {
	return &disk{block.Identity{Disk: block.NewID(), Life: block.NewID()}}
}

func (*disk) Geometry() block.Geometry      { return block.Geometry{Size: 1 << 16, PreferredBlock: 512} }
func (*disk) Keeps(block.ID) bool           { return false }
func (*disk) Fault() string                 { return "" }
func (d *disk) Identity() block.Identity    { return d.identity }
func (d *disk) NewQueue(func()) block.Queue { return d }
func (*disk) Close() error                  { return nil }

func (*disk) Do(_ block.Op, _ []byte, _, _ int64, _ block.Flags, done block.Completion) bool {
	done.Complete(0)
	return true
}

func (v *target) export(d *disk) (*rnbd.Server, netip.AddrPort) {
	v.Helper()
	srv := rnbd.NewServer(rnbd.ServerConfig{})
	v.Cleanup(func() { srv.Close() })
	v.offer(srv, d)
	return srv, v.serveRTRS(srv.NewSession)
}

func (v *target) offer(srv *rnbd.Server, d *disk) {
	v.Helper()
	if err := srv.AddExport(rnbd.Export{Name: "disk", Storage: d, AllowAll: true}); err != nil {
		v.Fatal(err)
	}
}

func (v *target) mount(name string, to netip.AddrPort, opt rnbd.OpenOptions) (*rnbd.Disk, error) {
	v.Helper()
	cl := must(rnbd.Connect(v.Context(), rnbd.ClientConfig{RTRS: rtrs.ClientConfig{
		ULP: v.consumer(name, verbs.NSNT), Name: name, Paths: []rtrs.PathConfig{{Remote: to, Transport: &transport.Config{Protector: transport.LoopbackOnly()}}},
	}}))(v.T)
	v.Cleanup(func() { cl.Close() })
	return cl.Open(v.Context(), "disk", opt)
}

// result is that of one I/O of 512 bytes.
func result(ctx context.Context, d *rnbd.Disk, op block.Op) error {
	io, err := d.Get(ctx, op, 0, 512, 0)
	if err != nil {
		return err
	}
	defer io.Release()
	done := make(errnoChan, 1)
	io.Submit(done, false)
	if errno := <-done; errno != 0 {
		return errno
	}
	return nil
}

type errnoChan chan syscall.Errno

func (c errnoChan) Complete(errno syscall.Errno) { c <- errno }

func TestStorageThatLostAcknowledgedWrites(t *testing.T) {
	run(t,
		attack{"its host loses power, a flush follows", checks.StoreLife, func(v *target) bool {
			d := newDisk()
			srv, at := v.export(d)
			claim := v.writeAndKeep(at)
			v.replace(srv, &disk{block.Identity{Disk: d.identity.Disk, Life: block.NewID()}})
			again, err := v.mount("restarted", at, rnbd.OpenOptions{Claim: claim})
			return err == nil && result(v.Context(), again, block.OpFlush) == nil
		}},
		attack{"another disk takes its place", checks.DiskIdentity, func(v *target) bool {
			srv, at := v.export(newDisk())
			claim := v.writeAndKeep(at)
			claim.Life = block.ID{} // all is flushed
			v.replace(srv, newDisk())
			again, err := v.mount("restarted", at, rnbd.OpenOptions{Claim: claim})
			return err == nil && result(v.Context(), again, block.OpWrite) == nil
		}},
		attack{"two hosts write to it", checks.OneWriter, func(v *target) bool {
			_, at := v.export(newDisk())
			if _, err := v.mount("first", at, rnbd.OpenOptions{}); err != nil {
				v.Fatal(err)
			}
			second, err := v.mount("second", at, rnbd.OpenOptions{})
			if err != nil && !errors.Is(err, rnbd.ErrInUse) {
				v.Fatal(err)
			}
			return err == nil && result(v.Context(), second, block.OpWrite) == nil
		}},
		attack{"its file is restored, a reload follows", checks.RestoredFile, func(v *target) bool {
			path, other := filepath.Join(v.TempDir(), "disk"), filepath.Join(v.TempDir(), "restored")
			for _, p := range []string{path, other} {
				if err := os.WriteFile(p, make([]byte, 4096), 0o600); err != nil {
					v.Fatal(err)
				}
			}
			st := must(backing.Open(path, backing.Options{}))(v.T)
			v.Cleanup(func() { st.Close() })
			if err := os.Rename(other, path); err != nil {
				v.Fatal(err)
			}
			var now unix.Stat_t
			if err := unix.Stat(path, &now); err != nil {
				v.Fatal(err)
			}
			return st.IsFile(&now)
		}},
		attack{"a FUA write gets the error, a flush follows", checks.FlushLatch, func(v *target) bool {
			const size = 60 << 20
			st := must(backing.Open(backingtest.ThinFile(v.T, size).Path, backing.Options{Records: filepath.Join(v.TempDir(), "records")}))(v.T)
			v.Cleanup(func() { st.Close() })
			block := make([]byte, 1<<20)
			block[0] = 1
			failed := false
			for off := int64(0); off < size && !failed; off += int64(len(block)) {
				if err := st.Write(block, off, false); err != nil {
					v.Fatal(err)
				}
				failed = st.Write(block[:4096], off, true) != nil
			}
			if !failed {
				v.Fatal("the storage is not full")
			}
			return st.Flush() == nil
		}},
	)
}

// writeAndKeep writes to a disk, and returns its claim after its client has gone.
func (v *target) writeAndKeep(at netip.AddrPort) rnbd.Claim {
	v.Helper()
	d, err := v.mount("client", at, rnbd.OpenOptions{})
	if err != nil {
		v.Fatal(err)
	}
	if err := result(v.Context(), d, block.OpWrite); err != nil {
		v.Fatal(err)
	}
	claim := d.Claim()
	if err := d.Close(); err != nil {
		v.Fatal(err)
	}
	return claim
}

// replace exchanges the storage of the export.
func (v *target) replace(srv *rnbd.Server, d *disk) {
	v.Helper()
	if err := srv.RemoveExport("disk"); err != nil {
		v.Fatal(err)
	}
	v.offer(srv, d)
}
