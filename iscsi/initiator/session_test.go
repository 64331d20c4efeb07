package initiator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iscsi/tcp"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

const (
	iqn      = "iqn.2026-01.org.example:disk"
	me       = "iqn.2026-01.org.example:me"
	diskSize = 16 << 20
)

// serve serves a disk by our target, and returns its address and its file.
func serve(t *testing.T) (address, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, diskSize)); err != nil {
		t.Fatal(err)
	}
	st, err := backing.Open(path, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := lu.New(lu.Config{Medium: st})
	if err != nil {
		t.Fatal(err)
	}
	d := &lu.Device{}
	srv := target.NewServer(target.Config{LogoutWait: -1})
	if err := errors.Join(d.Add(0, u), srv.Add(&target.Target{Name: iqn, Device: d})); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		u.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String(), path
}

func login(t *testing.T, address string, cfg initiator.Config) (*initiator.Session, error) {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Initiator == "" {
		cfg.Initiator = me
	}
	return initiator.Login(t.Context(), nc, cfg)
}

// TestSessionReadsAndWrites: what many goroutines write in pieces of all lengths is what is read, and what is in the file.
func TestSessionReadsAndWrites(t *testing.T) {
	address, path := serve(t)
	s, err := login(t, address, initiator.Config{Target: iqn})
	if err != nil {
		t.Fatal(err)
	}
	if s.Size() != diskSize || s.BlockLen != 512 {
		t.Fatalf("%d blocks of %d bytes", s.Blocks, s.BlockLen)
	}
	want := make([]byte, diskSize)
	rng := rand.New(rand.NewPCG(1, 2))
	rand.NewChaCha8([32]byte{}).Read(want)
	var all sync.WaitGroup
	for off := 0; off < len(want); {
		n := min(512*(1+rng.IntN(1<<rng.IntN(13))), len(want)-off) // up to 2 MiB, which are several commands
		part, at := want[off:off+n], int64(off)
		all.Go(func() {
			if n, err := s.WriteAt(part, at); err != nil {
				t.Errorf("%d bytes are written: %v", n, err)
			}
			got := make([]byte, n)
			if _, err := s.ReadAt(got, at); err != nil || !bytes.Equal(got, part) {
				t.Errorf("%d bytes at %d are not read as they were written: %v", n, at, err)
			}
		})
		off += n
	}
	all.Wait()
	if err := errors.Join(s.Flush(), s.Close()); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has something else: %v", err)
	}
	if _, err := s.ReadAt(make([]byte, 512), 0); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("a closed session: %v", err)
	}
}

// TestErrorsOfASession: each says what it is.
func TestErrorsOfASession(t *testing.T) {
	address, _ := serve(t)
	s, err := login(t, address, initiator.Config{Target: iqn})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, x := range []struct{ n, off int }{{100, 0}, {512, 100}, {512, diskSize}, {1024, diskSize - 512}, {512, -512}} {
		if _, err := s.ReadAt(make([]byte, x.n), int64(x.off)); !errors.Is(err, initiator.ErrAlign) {
			t.Errorf("%d bytes at %d: %v", x.n, x.off, err)
		}
	}
	var failed *initiator.CommandError
	if _, err := s.Do([]byte{0xff, 5: 0}, nil, nil); !errors.As(err, &failed) || failed.Sense.Code != scsi.InvalidOperationCode || failed.Op != 0xff {
		t.Errorf("a command that there is not: %v", err)
	}
	if _, err := login(t, address, initiator.Config{Target: iqn + "-2"}); !errors.Is(err, initiator.ErrRefused) {
		t.Errorf("a target that there is not: %v", err)
	}
	if _, err := login(t, address, initiator.Config{Target: iqn, LUN: 7}); !errors.As(err, &failed) || failed.Sense.Code != scsi.LogicalUnitNotSupported {
		t.Errorf("a unit that there is not: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a, b := net.Pipe()
	defer b.Close()
	cancel()
	if _, err := initiator.Login(ctx, a, initiator.Config{Initiator: me, Target: iqn}); !errors.Is(err, context.Canceled) {
		t.Errorf("a target that says nothing: %v", err)
	}
}

// answer is a PDU of a target of a test.
type answer struct {
	h    iscsi.BHS
	data []byte
}

func response(itt, statSN uint32, status scsi.Status) (a answer) {
	r := iscsi.Response{Response: iscsi.CommandCompleted, Status: uint8(status), ITT: itt, Numbers: iscsi.Numbers{StatSN: statSN, ExpCmdSN: 1, MaxCmdSN: 100}}
	r.Put(&a.h)
	return a
}

func dataIn(itt, statSN, off uint32, data []byte) (a answer) {
	d := iscsi.DataIn{Final: true, HasStatus: true, ITT: itt, TTT: iscsi.NoTag, Offset: off, Numbers: iscsi.Numbers{StatSN: statSN, ExpCmdSN: 1, MaxCmdSN: 100}}
	d.Put(&a.h)
	a.data = data
	return a
}

func ask(itt, off, n uint32) (a answer) {
	r := iscsi.R2T{ITT: itt, TTT: 1, Offset: off, Length: n, Numbers: iscsi.Numbers{ExpCmdSN: 1, MaxCmdSN: 100}}
	r.Put(&a.h)
	return a
}

// unit is a target with a unit of 1 MiB, whose reads and writes a test answers.
func unit(t *testing.T, rw func(h *iscsi.BHS, statSN uint32) []answer) *initiator.Session {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { b.Close() })
	go func() {
		c := tcp.NewConn(b)
		if letIn(c, &open{}) != nil {
			return
		}
		for statSN := uint32(10); ; statSN++ {
			h, _, err := c.ReadPDU()
			if err != nil {
				return
			}
			var out []answer
			switch k, err := iscsi.ParseCommand(&h); {
			case err != nil:
				continue
			case k.CDB[0] == scsi.TestUnitReady:
				out = []answer{response(k.ITT, statSN, scsi.Good)}
			case k.CDB[0] == scsi.ServiceActionIn16:
				capacity := make([]byte, 32)
				binary.BigEndian.PutUint64(capacity, 2047)
				binary.BigEndian.PutUint32(capacity[8:], 512)
				out = []answer{dataIn(k.ITT, statSN, 0, capacity)}
			default:
				out = rw(&h, statSN)
			}
			for _, x := range out {
				if c.WritePDU(&x.h, x.data) != nil {
					return
				}
			}
		}
	}()
	s, err := initiator.Login(t.Context(), a, initiator.Config{Initiator: me, Target: iqn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestHostileTarget: what a target must not send ends the session, in words, and reaches no memory that it is not for.
func TestHostileTarget(t *testing.T) {
	reject, async, unasked := answer{}, answer{}, answer{}
	(&iscsi.Reject{Reason: iscsi.RejectDataDigest}).Put(&reject.h)
	(&iscsi.Async{Event: 1}).Put(&async.h)
	unasked.h[0] = 0x3f
	for name, c := range map[string]struct {
		out  func(itt, statSN uint32) []answer
		want error
	}{
		"more data than were asked for":  {func(itt, sn uint32) []answer { return []answer{dataIn(itt, sn, 0, make([]byte, 8192))} }, initiator.ErrProtocol},
		"data behind the end":            {func(itt, sn uint32) []answer { return []answer{dataIn(itt, sn, 4096, make([]byte, 512))} }, initiator.ErrProtocol},
		"data at 4 GiB":                  {func(itt, sn uint32) []answer { return []answer{dataIn(itt, sn, 0xffffff00, make([]byte, 512))} }, initiator.ErrProtocol},
		"fewer data than were asked for": {func(itt, sn uint32) []answer { return []answer{dataIn(itt, sn, 0, make([]byte, 512))} }, initiator.ErrProtocol},
		"data for another task":          {func(itt, sn uint32) []answer { return []answer{dataIn(itt+1, sn, 0, make([]byte, 512))} }, initiator.ErrProtocol},
		"the first half twice": {func(itt, sn uint32) []answer {
			half := dataIn(itt, 0, 0, make([]byte, 2048))
			half.h[1] &^= 0x81 // neither the last, nor with a status
			return []answer{half, dataIn(itt, sn, 0, make([]byte, 2048))}
		}, initiator.ErrProtocol},
		"an R2T for a READ":                    {func(itt, sn uint32) []answer { return []answer{ask(itt, 0, 512)} }, initiator.ErrProtocol},
		"a response to another task":           {func(itt, sn uint32) []answer { return []answer{response(itt+1, sn, scsi.Good)} }, initiator.ErrProtocol},
		"a Reject":                             {func(itt, sn uint32) []answer { return []answer{reject} }, initiator.ErrProtocol},
		"the wish to be left":                  {func(itt, sn uint32) []answer { return []answer{async} }, initiator.ErrAsked},
		"a PDU of a type that is not assigned": {func(itt, sn uint32) []answer { return []answer{unasked} }, initiator.ErrProtocol},
	} {
		s := unit(t, func(h *iscsi.BHS, sn uint32) []answer { return c.out(h.ITT(), sn) })
		guarded := bytes.Repeat([]byte{0xa5}, 3*4096)
		if _, err := s.ReadAt(guarded[4096:8192:8192], 0); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if bytes.Count(guarded[:4096], []byte{0xa5})+bytes.Count(guarded[8192:], []byte{0xa5}) != 8192 {
			t.Errorf("%s: memory that is not for it has changed", name)
		}
	}
	for name, out := range map[string]func(itt, sn uint32) []answer{
		"an R2T behind the end":         func(itt, sn uint32) []answer { return []answer{ask(itt, 1<<20, 512)} },
		"an R2T of 4 GiB":               func(itt, sn uint32) []answer { return []answer{ask(itt, 0xffffff00, 0x200)} },
		"an R2T of nothing":             func(itt, sn uint32) []answer { return []answer{ask(itt, 0, 0)} },
		"an R2T for what is not next":   func(itt, sn uint32) []answer { return []answer{ask(itt, 1<<20-512, 512)} },
		"GOOD before all was asked for": func(itt, sn uint32) []answer { return []answer{response(itt, sn, scsi.Good)} },
		"GOOD with a residual": func(itt, sn uint32) []answer {
			a := answer{}
			r := iscsi.Response{Response: iscsi.CommandCompleted, ITT: itt, Residual: iscsi.Residual{Underflow: true, Count: 512}, Numbers: iscsi.Numbers{StatSN: sn, ExpCmdSN: 1, MaxCmdSN: 100}}
			r.Put(&a.h)
			return []answer{a}
		},
		"data for a WRITE": func(itt, sn uint32) []answer { return []answer{dataIn(itt, sn, 0, make([]byte, 512))} },
	} {
		s := unit(t, func(h *iscsi.BHS, sn uint32) []answer { return out(h.ITT(), sn) })
		if _, err := s.WriteAt(make([]byte, 1<<20), 0); !errors.Is(err, initiator.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCommandThatIsTurnedAwayIsSentAgain: BUSY, TASK SET FULL and unit attentions are no errors of a caller's; others are.
func TestCommandThatIsTurnedAwayIsSentAgain(t *testing.T) {
	turns := []scsi.Status{scsi.Busy, scsi.TaskSetFull, scsi.Good, scsi.ReservationConflict}
	s := unit(t, func(h *iscsi.BHS, sn uint32) []answer {
		status := turns[0]
		turns = turns[1:]
		return []answer{response(h.ITT(), sn, status)}
	})
	if _, err := s.WriteAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
	var failed *initiator.CommandError
	if _, err := s.WriteAt(make([]byte, 512), 0); !errors.As(err, &failed) || failed.Status != scsi.ReservationConflict {
		t.Error(err)
	}
}

// TestCloseEndsWhatIsUnderWay, although the target never answers.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	began := make(chan struct{})
	s := unit(t, func(*iscsi.BHS, uint32) []answer { close(began); return nil })
	over := make(chan error)
	go func() {
		_, err := s.ReadAt(make([]byte, 512), 0)
		over <- err
	}()
	<-began
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-over; !errors.Is(err, initiator.ErrClosed) {
		t.Error(err)
	}
}

// FuzzSession: a target that sends anything after the login neither crashes a session nor keeps it.
func FuzzSession(f *testing.F) {
	good, capacity := response(1, 2, scsi.Good), make([]byte, 32)
	binary.BigEndian.PutUint32(capacity[4:], 2047)
	binary.BigEndian.PutUint32(capacity[8:], 512)
	size := dataIn(2, 3, 0, capacity)
	size.h.SetLengths(0, len(capacity))
	r2t, in := ask(3, 0, 512), dataIn(3, 4, 0, make([]byte, 512))
	in.h.SetLengths(0, 512)
	start := append(append(bytes.Clone(good.h[:]), size.h[:]...), capacity...)
	f.Add(start)
	f.Add(append(bytes.Clone(start), r2t.h[:]...))
	f.Add(append(append(bytes.Clone(start), in.h[:]...), in.data...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		a, b := net.Pipe()
		defer b.Close()
		go func() {
			defer b.Close()
			c := tcp.NewConn(b)
			if letIn(c, &open{}) != nil {
				return
			}
			go func() {
				for {
					if _, _, err := c.ReadPDU(); err != nil {
						return
					}
				}
			}()
			b.Write(sent)
		}()
		s, err := initiator.Login(t.Context(), a, initiator.Config{Initiator: me, Target: iqn})
		if err != nil {
			return
		}
		_, _ = s.ReadAt(make([]byte, 512), 0)
		_, _ = s.WriteAt(make([]byte, 512), 0)
		s.Close()
	})
}
