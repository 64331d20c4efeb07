// What the C library and the engine, a Go program made a library, have in common. The structures are those of
// package rdmalib, field by field.
#ifndef IW_ENGINE_H
#define IW_ENGINE_H
#include <stdint.h>

// A completion.
struct iw_wc {
	uint64_t id;
	uint32_t status, opcode, len, imm, qp_num, flags, invalidated;
	uint32_t seq; // of a send: how many its queue pair has taken up to it
	uint32_t pad[4];
};

// How many streams of a completion queue who polls it looks after; the engine alone sees to the others.
enum { IW_SOCKETS = 4 };

// A completion queue: the engine writes behind tail, the program reads from head on, without a call.
struct iw_ring {
	uint64_t tail, pad0[7];
	uint64_t head, pad1[7];
	uint64_t armed; // 0, or tail when it was armed << 2 | 1 for solicited completions, 2 for any
	int32_t fd, pad2; // where an event is written to, -1: nowhere
	uint64_t cookie;
	uint64_t reported; // events written
	uint64_t mask;
	struct iw_wc *wc;
	int32_t sockets[IW_SOCKETS]; // of streams that complete here: the descriptor and 1, 0: none
	uint64_t spins; // polls that have found nothing after several like that
	uint32_t quiet; // 1: the engine relies on them, and sleeps is to be called at their end
	uint32_t pad3[13];
};

struct iw_sge {
	uint64_t addr;
	uint32_t len, lkey;
};

struct iw_qp_config {
	uint32_t pd, send_cq, recv_cq, srq, max_send, max_recv, send_sge, recv_sge;
};

enum { IW_SEND = 1, IW_WRITE, IW_READ, IW_IMM, IW_FETCH_ADD, IW_CMP_SWAP, IW_BIND, IW_INVALIDATE };
enum { IW_SIGNALED = 1, IW_SOLICITED = 2, IW_FENCE = 4, IW_MORE = 8, IW_INLINE = 16, IW_WITH_INVALIDATE = 32 };

struct iw_send {
	uint64_t id;
	uint32_t op, flags, nsge, rkey;
	uint64_t raddr, imm, add, cmp;
	uint32_t mw, access;
	const struct iw_sge *sg;
	uint64_t reserved;
};

enum { IW_MAX_INLINE = 1024, IW_SGE = 4, IW_MAX_SGE = 30, IW_MAX_WR = 1 << 14, IW_MAX_CQE = 1 << 20, IW_MAX_QP = 1 << 14, IW_MAX_CQ = 1 << 14,
	IW_MAX_PD = 1 << 14, IW_MAX_MR = 1 << 16, IW_MAX_SRQ = 1 << 10, IW_MAX_DEPTH = 128 };

typedef void (*iw_async_fn)(uint32_t kind, uint32_t handle);

// All return an errno, 0 for none, but for where they return something else.
struct iw_engine {
	int (*start)(iw_async_fn);
	int (*alloc_pd)(uint32_t *);
	int (*dealloc_pd)(uint32_t);
	int (*reg_mr)(uint32_t pd, void *addr, uint64_t len, uint64_t base, uint32_t access, uint32_t *lkey, uint32_t *rkey);
	int (*dereg_mr)(uint32_t);
	int (*alloc_mw)(uint32_t pd, uint32_t *, uint32_t *rkey);
	int (*dealloc_mw)(uint32_t);
	int (*create_cq)(struct iw_ring *, uint32_t *);
	int (*resize_cq)(uint32_t, struct iw_ring *);
	int (*destroy_cq)(uint32_t);
	int (*progress)(uint32_t cq); // receives what has come on its streams; returns on how many
	void (*sleeps)(uint32_t cq); // the program is about to wait for an event
	int (*create_srq)(uint32_t pd, uint32_t n, uint32_t sges, uint32_t *);
	int (*arm_srq)(uint32_t, uint32_t limit);
	int (*destroy_srq)(uint32_t);
	int (*post_srq_recv)(uint32_t, uint64_t id, struct iw_sge *, uint32_t n);
	int (*create_qp)(struct iw_qp_config *, uint32_t *);
	int (*destroy_qp)(uint32_t);
	int (*fail_qp)(uint32_t);
	uint32_t (*qp_state)(uint32_t); // enum ibv_qp_state
	int (*post_send)(uint32_t, struct iw_send *, uint32_t n, uint32_t *done);
	int (*post_recv)(uint32_t, uint64_t id, struct iw_sge *, uint32_t n);
	void (*cm_open)(int fd);
	void (*cm_close)(int fd);
	int (*cm_command)(int fd, void *, uint32_t len);
	int (*cm_event)(int fd, void *, uint32_t len);
};
#endif
