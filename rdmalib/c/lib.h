// Inside libibverbs.so.1.
#ifndef IW_LIB_H
#define IW_LIB_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>
#include "engine.h"

// Macros of verbs.h that stand before the functions.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define PUBLIC __attribute__((visibility("default")))

// The node GUID: IronWarp's, of no vendor.
#define IW_GUID htobe64(0x0249570000000001ULL)

// engine loads the engine at the first use. It returns NULL and sets errno if that fails, or in a child of fork: a
// Go runtime is not there after it.
const struct iw_engine *engine(void);

// engine_to_post is engine for the data path. Its calls stand between hold and release.
const struct iw_engine *engine_to_post(void);

// started_by_run reports whether somebody has said what the program's RDMA may reach; if not it says so, and sets errno.
int started_by_run(void);

struct iw_context {
	int async_in; // where asynchronous events are written to
	struct iw_context *next;
	struct verbs_context v;
};

static inline struct iw_context *context_of(struct ibv_context *c)
{
	return (struct iw_context *)((char *)c - offsetof(struct iw_context, v.context));
}

struct iw_cq {
	struct ibv_cq_ex cq; // begins as struct ibv_cq does
	struct iw_ring *ring;
	uint32_t handle;
	unsigned idle; // polls in a row that found nothing
	pthread_spinlock_t lock; // of who polls
	pthread_spinlock_t arming; // of who arms; who gives the queue another ring has both, this one last
	struct iw_wc at; // the completion that ibv_start_poll and ibv_next_poll are at
};

struct iw_channel {
	struct ibv_comp_channel ch;
	int in; // where events are written to
};

struct iw_qp {
	struct ibv_qp_ex ex; // begins with struct ibv_qp
	struct iw_builder *builder; // of ibv_wr_*, where they were asked for
	uint32_t handle;
	uint32_t posted; // sends
	int sig_all;
	struct ibv_qp_cap cap;
	int access;
};

struct iw_srq {
	struct ibv_srq srq;
	uint32_t handle, max, sges;
	uint32_t limit;
};

// What an asynchronous event is about, by its handle.
enum { IW_CQS, IW_QPS, IW_SRQS, IW_KINDS };
// leave returns how many events the program has taken.
void enter(int kind, uint32_t handle, void *);
uint32_t leave(int kind, uint32_t handle);
void async_event(uint32_t kind, uint32_t handle);

// How many of a queue pair's sends, in their order, the program has polled: a work request is one of those that its send
// queue holds until then. It outlives the queue pair, of which completions may be left.
struct iw_polled {
	uint32_t handle, seq;
};
struct iw_polled *polled_of(uint32_t handle);

// take_room takes room for n more sends; give_room gives it back.
int take_room(struct iw_qp *, uint32_t n);
void give_room(struct iw_qp *, uint32_t n);

int iw_poll_cq(struct ibv_cq *, int, struct ibv_wc *);
int iw_req_notify_cq(struct ibv_cq *, int);
int iw_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
int iw_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int iw_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int iw_bind_mw(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
void iw_extend_cq(struct iw_cq *);
struct ibv_cq_ex *iw_create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
struct ibv_qp *iw_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
struct ibv_srq *iw_create_srq_ex(struct ibv_context *, struct ibv_srq_init_attr_ex *);
int iw_can_build(uint64_t operations);
int iw_make_builder(struct iw_qp *);
void iw_free_builder(struct iw_qp *);
struct ibv_mw *iw_alloc_mw(struct ibv_pd *, enum ibv_mw_type);
int iw_dealloc_mw(struct ibv_mw *);

// load_quietly is dlopen of the engine, without harm to the program's signals.
void *load_quietly(const char *path);
extern int late;
void give_stacks(void);
void hold_signals(sigset_t *);
void release_signals(const sigset_t *);

// hold keeps handlers from running in the engine, on a stack that is too small for them, where nothing else does.
static inline void hold(sigset_t *was)
{
	if (__builtin_expect(late, 0))
		hold_signals(was);
}
static inline void release(const sigset_t *was)
{
	if (__builtin_expect(late, 0))
		release_signals(was);
}

// redirect has the library that a call came from, if it is librdmacm, open our rdma_cm in place of the kernel's.
void redirect(void *caller);

// sges is how many elements the lists of a queue have that a program asks for n: no fewer than cost nothing.
static inline uint32_t sges(uint32_t n) { return n < IW_SGE ? IW_SGE : n; }
#endif
