// ibv_wr_*: work requests that are built by calls between ibv_wr_start and ibv_wr_complete, and posted by the latter.
#include "lib.h"
#include <endian.h>

// A work request that is being built, with copies of what a program may change before it is posted.
struct iw_built {
	struct iw_send s;
	struct iw_sge one; // the list of many is in the builder's
	unsigned char *data; // inline
	struct ibv_mw *mw;
};

struct iw_builder {
	pthread_mutex_t lock; // held from start to complete or abort
	struct iw_built *all;
	struct iw_sge *lists; // of each of these, q->cap.max_send_sge
	unsigned n, room;
	int err; // of the first call that can't be
};

static struct iw_builder *builder(struct ibv_qp_ex *x) { return ((struct iw_qp *)x)->builder; }

static uint32_t most(struct ibv_qp_ex *x) { return ((struct iw_qp *)x)->cap.max_send_sge; }

static void start(struct ibv_qp_ex *x)
{
	struct iw_builder *b = builder(x);
	pthread_mutex_lock(&b->lock);
	b->n = 0;
	b->err = 0;
}

static void finish(struct iw_builder *b)
{
	for (unsigned i = 0; i < b->n; i++) {
		free(b->all[i].data);
		b->all[i].data = NULL;
	}
	b->n = 0;
	pthread_mutex_unlock(&b->lock);
}

static void abort_all(struct ibv_qp_ex *x) { finish(builder(x)); }

// add begins a work request; NULL: there is no memory, or there has been an error.
static struct iw_built *add(struct ibv_qp_ex *x, uint32_t op, uint32_t rkey, uint64_t raddr)
{
	struct iw_builder *b = builder(x);
	if (b->err)
		return NULL;
	if (b->n == b->room) {
		unsigned room = b->room ? 2 * b->room : 16;
		void *p = room > IW_MAX_WR * 2 ? NULL : realloc(b->all, room * sizeof *b->all), *l = NULL;
		if (p) {
			b->all = p;
			l = reallocarray(b->lists, room, most(x) * sizeof *b->lists);
		}
		if (!l) {
			b->err = ENOMEM;
			return NULL;
		}
		b->lists = l;
		b->room = room;
	}
	struct iw_built *w = &b->all[b->n++];
	*w = (struct iw_built){ .s = { .id = x->wr_id, .op = op, .rkey = rkey, .raddr = raddr } };
	if (((struct iw_qp *)x)->sig_all || x->wr_flags & IBV_SEND_SIGNALED)
		w->s.flags |= IW_SIGNALED;
	if (x->wr_flags & IBV_SEND_SOLICITED)
		w->s.flags |= IW_SOLICITED;
	if (x->wr_flags & IBV_SEND_FENCE)
		w->s.flags |= IW_FENCE;
	return w;
}

static void cmp_swp(struct ibv_qp_ex *x, uint32_t rkey, uint64_t raddr, uint64_t compare, uint64_t swap)
{
	struct iw_built *w = add(x, IW_CMP_SWAP, rkey, raddr);
	if (w) {
		w->s.cmp = compare;
		w->s.add = swap;
	}
}

static void fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t raddr, uint64_t n)
{
	struct iw_built *w = add(x, IW_FETCH_ADD, rkey, raddr);
	if (w)
		w->s.add = n;
}

static void bind_mw(struct ibv_qp_ex *x, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *i)
{
	struct iw_built *w = add(x, IW_BIND, rkey, 0);
	if (!w)
		return;
	w->s.mw = mw->handle;
	w->s.access = i->mw_access_flags;
	w->mw = mw;
	w->one = (struct iw_sge){ i->addr, i->length, i->mr ? i->mr->lkey : 0 };
	w->s.nsge = 1;
}

static void local_inv(struct ibv_qp_ex *x, uint32_t rkey) { add(x, IW_INVALIDATE, rkey, 0); }
static void rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t raddr) { add(x, IW_READ, rkey, raddr); }
static void rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t raddr) { add(x, IW_WRITE, rkey, raddr); }
static void rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t raddr, __be32 imm)
{
	struct iw_built *w = add(x, IW_IMM, rkey, raddr);
	if (w)
		w->s.imm = be32toh(imm);
}
static void send_(struct ibv_qp_ex *x) { add(x, IW_SEND, 0, 0); }
static void send_inv(struct ibv_qp_ex *x, uint32_t rkey)
{
	struct iw_built *w = add(x, IW_SEND, 0, 0);
	if (w) {
		w->s.flags |= IW_WITH_INVALIDATE;
		w->s.imm = rkey;
	}
}

// last is the work request that is being built.
static struct iw_built *last(struct ibv_qp_ex *x)
{
	struct iw_builder *b = builder(x);
	if (b->err)
		return NULL;
	if (!b->n) {
		b->err = EINVAL;
		return NULL;
	}
	return &b->all[b->n - 1];
}

static void set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *list)
{
	struct iw_built *w = last(x);
	if (!w)
		return;
	if (n > most(x)) {
		builder(x)->err = EINVAL;
		return;
	}
	memcpy(n == 1 ? &w->one : &builder(x)->lists[(builder(x)->n - 1) * most(x)], list, n * sizeof *list);
	w->s.nsge = n;
}

static void set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t addr, uint32_t n)
{
	struct ibv_sge one = { addr, n, lkey };
	set_sge_list(x, 1, &one);
}

static void set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list)
{
	struct iw_built *w = last(x);
	size_t all = 0;
	if (!w)
		return;
	for (size_t i = 0; i < n; i++) {
		if (list[i].length > IW_MAX_INLINE - all) {
			builder(x)->err = EINVAL;
			return;
		}
		all += list[i].length;
	}
	free(w->data);
	if (!(w->data = malloc(all ? all : 1))) {
		builder(x)->err = ENOMEM;
		return;
	}
	all = 0;
	for (size_t i = 0; i < n; i++) {
		memcpy(w->data + all, list[i].addr, list[i].length);
		all += list[i].length;
	}
	w->s.flags |= IW_INLINE;
	w->s.nsge = 1;
	w->one = (struct iw_sge){ (uintptr_t)w->data, all, 0 };
}

static void set_inline_data(struct ibv_qp_ex *x, void *addr, size_t n)
{
	struct ibv_data_buf one = { addr, n };
	set_inline_data_list(x, 1, &one);
}

static int complete(struct ibv_qp_ex *x)
{
	enum { BATCH = 16 };
	sigset_t was;
	struct iw_builder *b = builder(x);
	const struct iw_engine *e = engine_to_post();
	struct iw_qp *q = (struct iw_qp *)x;
	int err = e ? b->err : errno;
	if (!err)
		err = take_room(q, b->n);
	int room = err ? 0 : b->n;
	for (unsigned at = 0; at < b->n && !err; at += BATCH) {
		struct iw_send s[BATCH];
		uint32_t n = 0, done = 0;
		for (; n < BATCH && at + n < b->n; n++) {
			s[n] = b->all[at + n].s;
			s[n].sg = s[n].nsge == 1 ? &b->all[at + n].one : &b->lists[(at + n) * most(x)];
			if (at + n + 1 < b->n)
				s[n].flags |= IW_MORE;
		}
		hold(&was);
		err = e->post_send(q->handle, s, n, &done);
		release(&was);
		room -= done;
		for (uint32_t i = 0; i < done; i++)
			if (s[i].op == IW_BIND)
				b->all[at + i].mw->rkey = s[i].rkey;
	}
	give_room(q, room);
	finish(b);
	return err;
}

enum { OPERATIONS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ |
	IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV };

int iw_can_build(uint64_t operations) { return !(operations & ~(uint64_t)OPERATIONS); }

int iw_make_builder(struct iw_qp *q)
{
	struct ibv_qp_ex *x = &q->ex;
	if (!(q->builder = calloc(1, sizeof *q->builder)))
		return ENOMEM;
	pthread_mutex_init(&q->builder->lock, NULL);
	x->wr_atomic_cmp_swp = cmp_swp;
	x->wr_atomic_fetch_add = fetch_add;
	x->wr_bind_mw = bind_mw;
	x->wr_local_inv = local_inv;
	x->wr_rdma_read = rdma_read;
	x->wr_rdma_write = rdma_write;
	x->wr_rdma_write_imm = rdma_write_imm;
	x->wr_send = send_;
	x->wr_send_inv = send_inv;
	x->wr_set_inline_data = set_inline_data;
	x->wr_set_inline_data_list = set_inline_data_list;
	x->wr_set_sge = set_sge;
	x->wr_set_sge_list = set_sge_list;
	x->wr_start = start;
	x->wr_complete = complete;
	x->wr_abort = abort_all;
	return 0;
}

void iw_free_builder(struct iw_qp *q)
{
	if (!q->builder)
		return;
	pthread_mutex_destroy(&q->builder->lock);
	free(q->builder->all);
	free(q->builder->lists);
	free(q->builder);
}

PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct iw_qp *q = (struct iw_qp *)qp;
	return q->builder ? &q->ex : NULL;
}
