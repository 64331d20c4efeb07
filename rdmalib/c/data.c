// The data path: posting, which calls the engine, and polling, which does not.
#include "lib.h"
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// After so many polls that found nothing it is looked at the sockets, and others have the processor: where there are few, a
// program that polls without a pause keeps the engine from running.
enum { LOOK_AFTER = 4, YIELD_AFTER = 64 };

// take moves the next completion of a ring out of it. The caller has the queue's lock.
static int take(struct iw_cq *q, struct iw_wc *w)
{
	struct iw_ring *r = q->ring;
	if (r->head == __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE)) {
		if (++q->idle > LOOK_AFTER)
			__atomic_store_n(&r->spins, r->spins + 1, __ATOMIC_RELAXED);
		return 0;
	}
	q->idle = 0;
	*w = r->wc[r->head & r->mask];
	if (w->seq) {
		struct iw_polled *p = polled_of(w->qp_num);
		if (p->handle == w->qp_num)
			__atomic_store_n(&p->seq, w->seq, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&r->head, r->head + 1, __ATOMIC_RELEASE);
	return 1;
}

// has_come asks the system, without ioctl, in whose place a program may have another. Poll would not tell of little on a socket
// whose engine is not to be woken for that, and recv takes an error away, of which the engine is told in any case.
static int has_come(const int *sockets, int n)
{
	int was = errno, bytes = 0;
	for (int i = 0; bytes <= 0 && i < n; i++)
		if (syscall(SYS_ioctl, sockets[i], FIONREAD, &bytes))
			bytes = 0;
	errno = was;
	return bytes > 0;
}

// progress follows a poll that has found nothing: what has come on the queue's streams is received by this thread. It returns 1 if
// that was something. The caller does not have the queue's lock.
static int progress(struct iw_cq *q)
{
	int sockets[IW_SOCKETS], n = 0, came = 0;
	pthread_spin_lock(&q->lock);
	unsigned idle = q->idle;
	for (int i = 0; idle % LOOK_AFTER == 0 && i < IW_SOCKETS; i++) {
		int socket = __atomic_load_n(&q->ring->sockets[i], __ATOMIC_RELAXED);
		if (socket)
			sockets[n++] = socket - 1;
	}
	pthread_spin_unlock(&q->lock);
	const struct iw_engine *e;
	if (has_come(sockets, n) && (e = engine_to_post())) {
		sigset_t was;
		hold(&was);
		came = e->progress(q->handle);
		release(&was);
	}
	if (!came && idle % YIELD_AFTER == 0)
		sched_yield();
	return came > 0;
}

static struct iw_polled polled[1 << 16];

struct iw_polled *polled_of(uint32_t handle) { return &polled[handle & 0xffff]; }

int take_room(struct iw_qp *q, uint32_t n)
{
	uint32_t posted = __atomic_add_fetch(&q->posted, n, __ATOMIC_ACQ_REL);
	if (posted - __atomic_load_n(&polled_of(q->handle)->seq, __ATOMIC_ACQUIRE) <= q->cap.max_send_wr)
		return 0;
	give_room(q, n);
	return ENOMEM;
}

void give_room(struct iw_qp *q, uint32_t n) { __atomic_sub_fetch(&q->posted, n, __ATOMIC_ACQ_REL); }

static int poll_once(struct iw_cq *q, int n, struct ibv_wc *wc)
{
	struct iw_wc w;
	int i = 0;
	pthread_spin_lock(&q->lock);
	for (; i < n && take(q, &w); i++) {
		wc[i] = (struct ibv_wc){ .wr_id = w.id, .status = w.status, .opcode = w.opcode, .byte_len = w.len, .qp_num = w.qp_num, .wc_flags = w.flags };
		if (w.flags & IBV_WC_WITH_INV)
			wc[i].invalidated_rkey = w.invalidated;
		else if (w.flags & IBV_WC_WITH_IMM)
			wc[i].imm_data = w.imm;
		if (i + 1 < n && q->ring->head == __atomic_load_n(&q->ring->tail, __ATOMIC_ACQUIRE)) {
			i++;
			break;
		}
	}
	pthread_spin_unlock(&q->lock);
	return i;
}

int iw_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct iw_cq *q = (struct iw_cq *)cq;
	int i = poll_once(q, n, wc);
	return i || n <= 0 || !progress(q) ? i : poll_once(q, n, wc);
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *a)
{
	struct iw_cq *q = (struct iw_cq *)cq;
	if (a->comp_mask)
		return EINVAL;
	pthread_spin_lock(&q->lock);
	for (int again = 1; !take(q, &q->at); again = 0) {
		pthread_spin_unlock(&q->lock);
		if (!again || !progress(q))
			return ENOENT;
		pthread_spin_lock(&q->lock);
	}
	cq->status = q->at.status;
	cq->wr_id = q->at.id;
	return 0;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct iw_cq *q = (struct iw_cq *)cq;
	if (!take(q, &q->at))
		return ENOENT;
	cq->status = q->at.status;
	cq->wr_id = q->at.id;
	return 0;
}

static void end_poll(struct ibv_cq_ex *cq) { pthread_spin_unlock(&((struct iw_cq *)cq)->lock); }

#define READ(result, name, value) \
	static result read_##name(struct ibv_cq_ex *cq) { const struct iw_wc *w = &((struct iw_cq *)cq)->at; (void)w; return value; }
READ(enum ibv_wc_opcode, opcode, w->opcode)
READ(uint32_t, vendor_err, 0)
READ(uint32_t, byte_len, w->len)
READ(__be32, imm_data, w->flags & IBV_WC_WITH_INV ? w->invalidated : w->imm)
READ(uint32_t, qp_num, w->qp_num)
READ(uint32_t, src_qp, 0)
READ(unsigned int, wc_flags, w->flags)
READ(uint32_t, slid, 0)
READ(uint8_t, sl, 0)
READ(uint8_t, dlid_path_bits, 0)

void iw_extend_cq(struct iw_cq *q)
{
	struct ibv_cq_ex *c = &q->cq;
	c->start_poll = start_poll;
	c->next_poll = next_poll;
	c->end_poll = end_poll;
	c->read_opcode = read_opcode;
	c->read_vendor_err = read_vendor_err;
	c->read_byte_len = read_byte_len;
	c->read_imm_data = read_imm_data;
	c->read_qp_num = read_qp_num;
	c->read_src_qp = read_src_qp;
	c->read_wc_flags = read_wc_flags;
	c->read_slid = read_slid;
	c->read_sl = read_sl;
	c->read_dlid_path_bits = read_dlid_path_bits;
}

// arm returns 1 if the engine has to be told. An event is due for completions behind the last that there is when the queue is
// armed: programs rely on there being none for one that they have polled.
static int arm(struct iw_ring *r, int solicited)
{
	uint64_t old = __atomic_load_n(&r->armed, __ATOMIC_SEQ_CST), now;
	do {
		if (solicited && (old & 3) == 2)
			return 0;
		now = __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST) << 2 | (solicited ? 1 : 2);
	} while (!__atomic_compare_exchange_n(&r->armed, &old, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return __atomic_load_n(&r->quiet, __ATOMIC_SEQ_CST) != 0;
}

int iw_req_notify_cq(struct ibv_cq *cq, int solicited)
{
	struct iw_cq *q = (struct iw_cq *)cq;
	pthread_spin_lock(&q->arming);
	int quiet = arm(q->ring, solicited);
	pthread_spin_unlock(&q->arming);
	const struct iw_engine *e;
	if (quiet && (e = engine_to_post())) {
		sigset_t was;
		hold(&was);
		e->sleeps(q->handle);
		release(&was);
	}
	return 0;
}

_Static_assert(sizeof(struct iw_sge) == sizeof(struct ibv_sge), "a list is handed on as it is");

// convert is a work request as the engine takes it.
static int convert(struct iw_qp *q, struct ibv_send_wr *wr, struct iw_send *s)
{
	*s = (struct iw_send){ .id = wr->wr_id, .nsge = wr->num_sge, .sg = (const void *)wr->sg_list,
		.raddr = wr->wr.rdma.remote_addr, .rkey = wr->wr.rdma.rkey };
	if (wr->num_sge < 0 || wr->num_sge > (int)q->cap.max_send_sge)
		return EINVAL;
	if (q->sig_all || wr->send_flags & IBV_SEND_SIGNALED)
		s->flags |= IW_SIGNALED;
	if (wr->send_flags & IBV_SEND_SOLICITED)
		s->flags |= IW_SOLICITED;
	if (wr->send_flags & IBV_SEND_FENCE)
		s->flags |= IW_FENCE;
	if (wr->send_flags & IBV_SEND_INLINE)
		s->flags |= IW_INLINE;
	if (wr->next)
		s->flags |= IW_MORE;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		s->op = IW_SEND;
		break;
	case IBV_WR_SEND_WITH_INV:
		s->op = IW_SEND;
		s->flags |= IW_WITH_INVALIDATE;
		s->imm = wr->invalidate_rkey;
		break;
	case IBV_WR_RDMA_WRITE:
		s->op = IW_WRITE;
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		s->op = IW_IMM;
		s->imm = be32toh(wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		s->op = IW_READ;
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		s->op = IW_FETCH_ADD;
		s->raddr = wr->wr.atomic.remote_addr;
		s->rkey = wr->wr.atomic.rkey;
		s->add = wr->wr.atomic.compare_add;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		s->op = IW_CMP_SWAP;
		s->raddr = wr->wr.atomic.remote_addr;
		s->rkey = wr->wr.atomic.rkey;
		s->cmp = wr->wr.atomic.compare_add;
		s->add = wr->wr.atomic.swap;
		break;
	case IBV_WR_LOCAL_INV:
		s->op = IW_INVALIDATE;
		s->rkey = wr->invalidate_rkey;
		break;
	case IBV_WR_BIND_MW:
		s->op = IW_BIND;
		s->rkey = wr->bind_mw.rkey;
		s->mw = wr->bind_mw.mw->handle;
		s->access = wr->bind_mw.bind_info.mw_access_flags;
		break;
	default: // Sends with immediate data are not iWARP's
		return EOPNOTSUPP;
	}
	return 0;
}

int iw_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	enum { BATCH = 16 };
	struct iw_qp *q = (struct iw_qp *)qp;
	const struct iw_engine *e = engine_to_post();
	if (!e) {
		*bad = wr;
		return errno;
	}
	while (wr) {
		struct iw_send s[BATCH];
		struct iw_sge piece[BATCH]; // of binds
		struct ibv_send_wr *first = wr;
		uint32_t n = 0, done = 0;
		int err = 0;
		for (; wr && n < BATCH && !err; n++, wr = wr->next) {
			if ((err = convert(q, wr, &s[n])) || (err = take_room(q, 1)))
				break;
			if (s[n].op == IW_BIND) {
				struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
				piece[n] = (struct iw_sge){ b->addr, b->length, b->mr ? b->mr->lkey : 0 };
				s[n].sg = &piece[n];
				s[n].nsge = 1;
			}
		}
		if (err && n > 0)
			s[n - 1].flags &= ~IW_MORE;
		sigset_t was;
		hold(&was);
		int rc = n ? e->post_send(q->handle, s, n, &done) : 0;
		release(&was);
		give_room(q, n - done);
		struct ibv_send_wr *at = first;
		for (uint32_t i = 0; i < done; i++, at = at->next)
			if (s[i].op == IW_BIND)
				at->bind_mw.mw->rkey = s[i].rkey;
		if (rc || err) {
			*bad = at;
			return rc ? rc : err;
		}
	}
	return 0;
}

int iw_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *b) { return EOPNOTSUPP; } // of windows of type 1

static int post_recvs(int (*post)(uint32_t, uint64_t, struct iw_sge *, uint32_t), uint32_t handle, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	sigset_t was;
	int err = 0;
	hold(&was);
	for (; wr; wr = wr->next) {
		err = wr->num_sge < 0 || wr->num_sge > IW_MAX_SGE ? EINVAL : post(handle, wr->wr_id, (void *)wr->sg_list, wr->num_sge);
		if (err) {
			*bad = wr;
			break;
		}
	}
	release(&was);
	return err;
}

int iw_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct iw_engine *e = engine_to_post();
	if (!e || qp->srq) {
		*bad = wr;
		return e ? EINVAL : errno;
	}
	return post_recvs(e->post_recv, ((struct iw_qp *)qp)->handle, wr, bad);
}

int iw_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct iw_engine *e = engine_to_post();
	if (!e) {
		*bad = wr;
		return errno;
	}
	return post_recvs(e->post_srq_recv, ((struct iw_srq *)srq)->handle, wr, bad);
}
