// Command rnic is package rdmalib as a C library, libironwarp-rnic.so, which libibverbs.so.1 of ../c loads at a program's
// first use of the device. Its functions are those of struct iw_engine of ../c/engine.h.
//
// IRONWARP_SOCKET is the control socket of the daemon that protects the program's streams. IRONWARP_LAB, if set, is what
// `ironwarp run --lab` allows instead: addresses of hosts to reach in clear, separated by commas; this host is always
// allowed. IRONWARP_TRANSPORT is tcp or sctp-udp; without it streams are over TCP, unless the daemon has no ports of TCP for
// the program. What errno can't say of a refusal goes to standard error, and the rest to the file that IRONWARP_RDMA_LOG names.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../c
#include "engine.h"
static inline void iw_tell(iw_async_fn f, uint32_t kind, uint32_t handle) { f(kind, handle); }
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rdmalib"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

func main() {}

var e *rdmalib.Engine

//export iwgo_start
func iwgo_start(f C.iw_async_fn) C.int {
	var handler slog.Handler = slog.DiscardHandler
	if name := os.Getenv("IRONWARP_RDMA_LOG"); name != "" {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			fmt.Fprintf(os.Stderr, "ironwarp: IRONWARP_RDMA_LOG: %v\n", err)
		} else {
			handler = slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug}).WithAttrs([]slog.Attr{slog.Int("pid", os.Getpid())})
		}
	}
	cfg := rdmalib.Config{Log: slog.New(slog.NewMultiHandler(handler, warnings{}))}
	if errno := protect(&cfg, slog.New(handler)); errno != 0 {
		return C.int(errno)
	}
	engine, err := rdmalib.New(cfg)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ironwarp: %v\n", err)
		return C.int(syscall.ENOMEM)
	}
	e = engine
	e.Events(func(kind, handle uint32) { C.iw_tell(f, C.uint32_t(kind), C.uint32_t(handle)) })
	return 0
}

// protect chooses who protects the program's streams, and what carries them.
func protect(cfg *rdmalib.Config, quiet *slog.Logger) syscall.Errno {
	var kind transport.Kind
	said := os.Getenv("IRONWARP_TRANSPORT")
	if said != "" {
		var err error
		if kind, err = transport.ParseKind(said); err != nil || kind == transport.SCTP {
			fmt.Fprintf(os.Stderr, "ironwarp: IRONWARP_TRANSPORT %q: tcp and sctp-udp are possible\n", said)
			return syscall.EINVAL
		}
	}
	lab, ok := os.LookupEnv("IRONWARP_LAB")
	if !ok {
		ctx, cancel := context.WithTimeout(context.Background(), connectTime)
		defer cancel()
		client, err := delegate.New(ctx, dial, cfg.Log)
		if err != nil {
			fmt.Fprintf(os.Stderr, "ironwarp: %v\n", err)
			return syscall.EACCES
		}
		if said == "" {
			kind = rdmalib.TransportOf(client.Terms())
		}
		cfg.Protector, cfg.Ports = rdmalib.Delegated(client, kind)
		cfg.SCTP = kind == transport.SCTPUDP
		return 0
	}
	var peers []netip.Addr
	for s := range strings.SplitSeq(lab, ",") {
		if s == "" {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "ironwarp: IRONWARP_LAB: %v\n", err)
			return syscall.EINVAL
		}
		peers = append(peers, a)
	}
	cfg.Protector, cfg.SCTP = rdmalib.Lab(quiet, peers...), kind == transport.SCTPUDP
	return 0
}

// connectTime bounds the wait for the daemon when the device is first used.
const connectTime = 10 * time.Second

// dial connects to the daemon. A refusal by it is final: the user may have no streams.
func dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := api.DialFlows(ctx, os.Getenv("IRONWARP_SOCKET"))
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeForbidden && !errors.Is(err, fs.ErrPermission) { // that is the socket's file
		err = fmt.Errorf("%w: %w", transport.ErrNotProtected, err)
	}
	return conn, err
}

// warnings go to standard error, in words.
type warnings struct{}

func (warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler         { return w }
func (w warnings) WithGroup(string) slog.Handler              { return w }

func (warnings) Handle(_ context.Context, r slog.Record) error {
	line := "ironwarp: " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += ", " + a.Key + ": " + a.Value.String()
		return true
	})
	_, err := fmt.Fprintln(os.Stderr, line)
	return err
}

// handle stores one, and returns an errno.
func handle(to *C.uint32_t, h uint32, errno syscall.Errno) C.int {
	*to = C.uint32_t(h)
	return C.int(errno)
}

//export iwgo_alloc_pd
func iwgo_alloc_pd(to *C.uint32_t) C.int {
	h, errno := e.AllocPD()
	return handle(to, h, errno)
}

//export iwgo_dealloc_pd
func iwgo_dealloc_pd(h C.uint32_t) C.int { return C.int(e.DeallocPD(uint32(h))) }

//export iwgo_reg_mr
func iwgo_reg_mr(pd C.uint32_t, addr unsafe.Pointer, n, base C.uint64_t, access C.uint32_t, lkey, rkey *C.uint32_t) C.int {
	l, r, errno := e.RegMR(uint32(pd), addr, uint64(n), uint64(base), uint32(access))
	*lkey, *rkey = C.uint32_t(l), C.uint32_t(r)
	return C.int(errno)
}

//export iwgo_dereg_mr
func iwgo_dereg_mr(h C.uint32_t) C.int { return C.int(e.DeregMR(uint32(h))) }

//export iwgo_alloc_mw
func iwgo_alloc_mw(pd C.uint32_t, to, rkey *C.uint32_t) C.int {
	h, key, errno := e.AllocMW(uint32(pd))
	*rkey = C.uint32_t(key)
	return handle(to, h, errno)
}

//export iwgo_dealloc_mw
func iwgo_dealloc_mw(h C.uint32_t) C.int { return C.int(e.DeallocMW(uint32(h))) }

func ringOf(r *C.struct_iw_ring) *rdmalib.Ring { return (*rdmalib.Ring)(unsafe.Pointer(r)) }

func sgeOf(s *C.struct_iw_sge) *rdmalib.SGE { return (*rdmalib.SGE)(unsafe.Pointer(s)) }

//export iwgo_create_cq
func iwgo_create_cq(ring *C.struct_iw_ring, to *C.uint32_t) C.int {
	h, errno := e.CreateCQ(ringOf(ring))
	return handle(to, h, errno)
}

//export iwgo_resize_cq
func iwgo_resize_cq(h C.uint32_t, ring *C.struct_iw_ring) C.int {
	return C.int(e.ResizeCQ(uint32(h), ringOf(ring)))
}

//export iwgo_destroy_cq
func iwgo_destroy_cq(h C.uint32_t) C.int { return C.int(e.DestroyCQ(uint32(h))) }

//export iwgo_progress
func iwgo_progress(h C.uint32_t) C.int { return C.int(e.Progress(uint32(h))) }

//export iwgo_sleeps
func iwgo_sleeps(h C.uint32_t) { e.Sleeps(uint32(h)) }

//export iwgo_create_srq
func iwgo_create_srq(pd, n, sges C.uint32_t, to *C.uint32_t) C.int {
	h, errno := e.CreateSRQ(uint32(pd), uint32(n), uint32(sges))
	return handle(to, h, errno)
}

//export iwgo_arm_srq
func iwgo_arm_srq(h, limit C.uint32_t) C.int { return C.int(e.ArmSRQ(uint32(h), uint32(limit))) }

//export iwgo_destroy_srq
func iwgo_destroy_srq(h C.uint32_t) C.int { return C.int(e.DestroySRQ(uint32(h))) }

//export iwgo_post_srq_recv
func iwgo_post_srq_recv(h C.uint32_t, id C.uint64_t, sg *C.struct_iw_sge, n C.uint32_t) C.int {
	return C.int(e.PostSRQRecv(uint32(h), uint64(id), sgeOf(sg), uint32(n)))
}

//export iwgo_create_qp
func iwgo_create_qp(cfg *C.struct_iw_qp_config, to *C.uint32_t) C.int {
	h, errno := e.CreateQP((*rdmalib.QPConfig)(unsafe.Pointer(cfg)))
	return handle(to, h, errno)
}

//export iwgo_destroy_qp
func iwgo_destroy_qp(h C.uint32_t) C.int { return C.int(e.DestroyQP(uint32(h))) }

//export iwgo_fail_qp
func iwgo_fail_qp(h C.uint32_t) C.int { return C.int(e.FailQP(uint32(h))) }

//export iwgo_qp_state
func iwgo_qp_state(h C.uint32_t) C.uint32_t { return C.uint32_t(e.QPState(uint32(h))) }

//export iwgo_post_send
func iwgo_post_send(h C.uint32_t, s *C.struct_iw_send, n C.uint32_t, done *C.uint32_t) C.int {
	d, errno := e.PostSend(uint32(h), (*rdmalib.Send)(unsafe.Pointer(s)), uint32(n))
	*done = C.uint32_t(d)
	return C.int(errno)
}

//export iwgo_post_recv
func iwgo_post_recv(h C.uint32_t, id C.uint64_t, sg *C.struct_iw_sge, n C.uint32_t) C.int {
	return C.int(e.PostRecv(uint32(h), uint64(id), sgeOf(sg), uint32(n)))
}

//export iwgo_cm_open
func iwgo_cm_open(fd C.int) { e.OpenCM(int32(fd)) }

//export iwgo_cm_close
func iwgo_cm_close(fd C.int) { e.CloseCM(int32(fd)) }

//export iwgo_cm_command
func iwgo_cm_command(fd C.int, b unsafe.Pointer, n C.uint32_t) C.int {
	return C.int(e.CommandCM(int32(fd), unsafe.Slice((*byte)(b), int(n))))
}

//export iwgo_cm_event
func iwgo_cm_event(fd C.int, b unsafe.Pointer, n C.uint32_t) C.int {
	return C.int(e.EventCM(int32(fd), unsafe.Slice((*byte)(b), int(n))))
}
