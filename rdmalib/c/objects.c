// Protection domains, memory, queues.
#include "lib.h"
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

// made returns p if err is 0, and otherwise frees it and sets errno.
static void *made(void *p, int err)
{
	if (!err)
		return p;
	free(p);
	errno = err;
	return NULL;
}

// new is calloc of one that the engine is needed for.
static void *new(size_t n, const struct iw_engine **e) { return (*e = engine()) ? calloc(1, n) : NULL; }

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	const struct iw_engine *e;
	struct ibv_pd *p = new(sizeof *p, &e);
	if (!p)
		return NULL;
	p->context = c;
	return made(p, e->alloc_pd(&p->handle));
}

PUBLIC int ibv_dealloc_pd(struct ibv_pd *p)
{
	const struct iw_engine *e = engine();
	int err = e ? e->dealloc_pd(p->handle) : errno;
	if (!err)
		free(p);
	return err;
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *addr, size_t n, uint64_t iova, unsigned access)
{
	const struct iw_engine *e;
	struct ibv_mr *m = new(sizeof *m, &e);
	if (!m)
		return NULL;
	*m = (struct ibv_mr){ .context = p->context, .pd = p, .addr = addr, .length = n };
	int err = e->reg_mr(p->handle, addr, n, iova, access, &m->lkey, &m->rkey);
	m->handle = m->lkey;
	return made(m, err);
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *p, void *addr, size_t n, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(p, addr, n, iova, access);
}

PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *addr, size_t n, int access)
{
	return ibv_reg_mr_iova2(p, addr, n, (uintptr_t)addr, access);
}

PUBLIC int ibv_dereg_mr(struct ibv_mr *m)
{
	const struct iw_engine *e = engine();
	int err = e ? e->dereg_mr(m->handle) : errno;
	if (!err)
		free(m);
	return err;
}

PUBLIC int ibv_rereg_mr(struct ibv_mr *m, int flags, struct ibv_pd *p, void *addr, size_t n, int access)
{
	errno = EOPNOTSUPP;
	return IBV_REREG_MR_ERR_INPUT;
}

struct ibv_mw *iw_alloc_mw(struct ibv_pd *p, enum ibv_mw_type type)
{
	const struct iw_engine *e;
	if (type != IBV_MW_TYPE_2) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	struct ibv_mw *w = new(sizeof *w, &e);
	if (!w)
		return NULL;
	*w = (struct ibv_mw){ .context = p->context, .pd = p, .type = type };
	return made(w, e->alloc_mw(p->handle, &w->handle, &w->rkey));
}

int iw_dealloc_mw(struct ibv_mw *w)
{
	const struct iw_engine *e = engine();
	int err = e ? e->dealloc_mw(w->handle) : errno;
	if (!err)
		free(w);
	return err;
}

PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	int p[2];
	struct iw_channel *h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	if (pipe2(p, O_CLOEXEC))
		return made(h, errno);
	fcntl(p[1], F_SETFL, O_NONBLOCK);
	h->ch = (struct ibv_comp_channel){ .context = c, .fd = p[0] };
	h->in = p[1];
	return &h->ch;
}

PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *c)
{
	if (__atomic_load_n(&c->refcnt, __ATOMIC_SEQ_CST))
		return EBUSY;
	close(c->fd);
	close(((struct iw_channel *)c)->in);
	free(c);
	return 0;
}

// new_ring makes a ring for n completions at least.
static struct iw_ring *new_ring(uint64_t n)
{
	uint64_t size = 16;
	while (size < n)
		size *= 2;
	struct iw_ring *r = aligned_alloc(64, (sizeof *r + 63) / 64 * 64);
	if (!r)
		return NULL;
	memset(r, 0, sizeof *r);
	r->fd = -1;
	r->mask = size - 1;
	if (!(r->wc = aligned_alloc(64, size * sizeof *r->wc))) {
		free(r);
		return NULL;
	}
	return r;
}

static void free_ring(struct iw_ring *r)
{
	free(r->wc);
	free(r);
}

static struct iw_cq *create_cq(struct ibv_context *c, int n, void *context, struct ibv_comp_channel *ch)
{
	const struct iw_engine *e;
	if (n < 1 || n > IW_MAX_CQE) {
		errno = EINVAL;
		return NULL;
	}
	struct iw_cq *q = new(sizeof *q, &e);
	if (!q)
		return NULL;
	if (!(q->ring = new_ring(n)))
		return made(q, ENOMEM);
	q->ring->cookie = (uintptr_t)q;
	if (ch)
		q->ring->fd = ((struct iw_channel *)ch)->in;
	struct ibv_cq *b = (struct ibv_cq *)&q->cq;
	b->context = c;
	b->channel = ch;
	b->cq_context = context;
	b->cqe = q->ring->mask + 1;
	pthread_mutex_init(&b->mutex, NULL);
	pthread_cond_init(&b->cond, NULL);
	pthread_spin_init(&q->lock, PTHREAD_PROCESS_PRIVATE);
	pthread_spin_init(&q->arming, PTHREAD_PROCESS_PRIVATE);
	int err = e->create_cq(q->ring, &q->handle);
	if (err) {
		free_ring(q->ring);
		return made(q, err);
	}
	b->handle = q->handle;
	if (ch)
		__atomic_add_fetch(&ch->refcnt, 1, __ATOMIC_SEQ_CST);
	iw_extend_cq(q);
	enter(IW_CQS, q->handle, q);
	return q;
}

PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *context, struct ibv_comp_channel *ch, int vector)
{
	if (vector != 0) {
		errno = EINVAL;
		return NULL;
	}
	return (struct ibv_cq *)create_cq(c, n, context, ch);
}

struct ibv_cq_ex *iw_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	const uint64_t have = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS;
	if (a->wc_flags & ~have || a->comp_mask & ~IBV_CQ_INIT_ATTR_MASK_FLAGS ||
	    (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && a->flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (a->cqe > IW_MAX_CQE || a->comp_vector) {
		errno = EINVAL;
		return NULL;
	}
	struct iw_cq *q = create_cq(c, a->cqe, a->cq_context, a->channel);
	return q ? &q->cq : NULL;
}

PUBLIC int ibv_resize_cq(struct ibv_cq *c, int n)
{
	const struct iw_engine *e = engine();
	struct iw_cq *q = (struct iw_cq *)c;
	if (!e)
		return errno;
	if (n < 1 || n > IW_MAX_CQE)
		return EINVAL;
	struct iw_ring *r = new_ring(n);
	if (!r)
		return ENOMEM;
	r->fd = q->ring->fd;
	r->cookie = q->ring->cookie;
	pthread_spin_lock(&q->lock);
	pthread_spin_lock(&q->arming);
	int err = e->resize_cq(q->handle, r);
	struct iw_ring *old = err ? r : q->ring;
	if (!err)
		q->ring = r;
	pthread_spin_unlock(&q->arming);
	pthread_spin_unlock(&q->lock);
	free_ring(old);
	if (!err)
		c->cqe = r->mask + 1;
	return err;
}

// forget takes the events of a queue that nobody has read from its channel.
static void forget(struct iw_cq *q, struct ibv_comp_channel *ch)
{
	struct pollfd p = { ch->fd, POLLIN };
	uint64_t v, others[1024];
	int n = 0;
	while (n < 1024 && poll(&p, 1, 0) > 0 && read(p.fd, &v, sizeof v) == sizeof v) {
		if (v == (uintptr_t)q)
			q->ring->reported--;
		else
			others[n++] = v;
	}
	if (n && write(((struct iw_channel *)ch)->in, others, n * sizeof *others) < 0) {}
}

// acknowledged waits until the program has acknowledged n events, which are about something that is to be freed.
static void acknowledged(pthread_mutex_t *m, pthread_cond_t *c, const uint32_t *have, uint32_t n)
{
	pthread_mutex_lock(m);
	while (*have < n)
		pthread_cond_wait(c, m);
	pthread_mutex_unlock(m);
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *c)
{
	const struct iw_engine *e = engine();
	struct iw_cq *q = (struct iw_cq *)c;
	int err = e ? e->destroy_cq(q->handle) : errno;
	if (err)
		return err;
	acknowledged(&c->mutex, &c->cond, &c->async_events_completed, leave(IW_CQS, q->handle));
	if (c->channel) {
		forget(q, c->channel);
		acknowledged(&c->mutex, &c->cond, &c->comp_events_completed, q->ring->reported); // those that were read
		__atomic_sub_fetch(&c->channel->refcnt, 1, __ATOMIC_SEQ_CST);
	}
	free_ring(q->ring);
	pthread_spin_destroy(&q->lock);
	pthread_spin_destroy(&q->arming);
	free(q);
	return 0;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
	uint64_t v;
	if (read(ch->fd, &v, sizeof v) != sizeof v)
		return -1;
	*cq = (struct ibv_cq *)(uintptr_t)v;
	*context = (*cq)->cq_context;
	return 0;
}

PUBLIC void ibv_ack_cq_events(struct ibv_cq *c, unsigned n)
{
	pthread_mutex_lock(&c->mutex);
	c->comp_events_completed += n;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->mutex);
}

PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *p, struct ibv_srq_init_attr *a)
{
	const struct iw_engine *e;
	if (a->attr.max_wr < 1 || a->attr.max_wr > IW_MAX_WR || a->attr.max_sge > IW_MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	struct iw_srq *s = new(sizeof *s, &e);
	if (!s)
		return NULL;
	s->max = a->attr.max_wr;
	s->sges = sges(a->attr.max_sge);
	s->srq = (struct ibv_srq){ .context = p->context, .srq_context = a->srq_context, .pd = p };
	int err = e->create_srq(p->handle, s->max, s->sges, &s->handle);
	if (err)
		return made(s, err);
	s->srq.handle = s->handle;
	a->attr.max_sge = s->sges;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	enter(IW_SRQS, s->handle, s);
	return &s->srq;
}

struct ibv_srq *iw_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	if (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && a->srq_type != IBV_SRQT_BASIC) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
		errno = EINVAL;
		return NULL;
	}
	return ibv_create_srq(a->pd, (struct ibv_srq_init_attr *)a);
}

PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	const struct iw_engine *e = engine();
	struct iw_srq *s = (struct iw_srq *)srq;
	if (!e)
		return errno;
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	if (!(mask & IBV_SRQ_LIMIT))
		return 0;
	int err = e->arm_srq(s->handle, a->srq_limit);
	if (!err)
		s->limit = a->srq_limit;
	return err;
}

PUBLIC int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	struct iw_srq *s = (struct iw_srq *)srq;
	*a = (struct ibv_srq_attr){ .max_wr = s->max, .max_sge = s->sges, .srq_limit = s->limit };
	return 0;
}

PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	const struct iw_engine *e = engine();
	struct iw_srq *s = (struct iw_srq *)srq;
	int err = e ? e->destroy_srq(s->handle) : errno;
	if (err)
		return err;
	acknowledged(&srq->mutex, &srq->cond, &srq->events_completed, leave(IW_SRQS, s->handle));
	free(s);
	return 0;
}

PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	const struct iw_engine *e;
	if (a->qp_type != IBV_QPT_RC) {
		errno = EOPNOTSUPP; // as a device without them has it
		return NULL;
	}
	struct ibv_qp_cap *cap = &a->cap;
	if (!a->send_cq || !a->recv_cq || cap->max_send_wr > IW_MAX_WR || cap->max_recv_wr > IW_MAX_WR || cap->max_send_sge > IW_MAX_SGE ||
	    cap->max_recv_sge > IW_MAX_SGE || cap->max_inline_data > IW_MAX_INLINE) {
		errno = EINVAL;
		return NULL;
	}
	struct iw_qp *q = new(sizeof *q, &e);
	if (!q)
		return NULL;
	struct iw_qp_config cfg = { .pd = p->handle, .send_cq = a->send_cq->handle, .recv_cq = a->recv_cq->handle,
		.srq = a->srq ? a->srq->handle : 0, .max_send = cap->max_send_wr, .max_recv = cap->max_recv_wr,
		.send_sge = sges(cap->max_send_sge), .recv_sge = sges(cap->max_recv_sge) };
	int err = e->create_qp(&cfg, &q->handle);
	if (err)
		return made(q, err);
	*polled_of(q->handle) = (struct iw_polled){ q->handle, 0 };
	if (!cap->max_send_wr)
		cap->max_send_wr = 1;
	cap->max_inline_data = IW_MAX_INLINE;
	cap->max_send_sge = cfg.send_sge;
	cap->max_recv_sge = cfg.recv_sge;
	if (a->srq)
		cap->max_recv_wr = cap->max_recv_sge = 0;
	q->cap = *cap;
	q->sig_all = a->sq_sig_all;
	q->ex.qp_base = (struct ibv_qp){ .context = p->context, .qp_context = a->qp_context, .pd = p, .send_cq = a->send_cq, .recv_cq = a->recv_cq,
		.srq = a->srq, .handle = q->handle, .qp_num = q->handle, .state = IBV_QPS_RESET, .qp_type = a->qp_type };
	pthread_mutex_init(&q->ex.qp_base.mutex, NULL);
	pthread_cond_init(&q->ex.qp_base.cond, NULL);
	enter(IW_QPS, q->handle, q);
	return &q->ex.qp_base;
}

struct ibv_qp *iw_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	int builds = a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	if (a->comp_mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) || (builds && !iw_can_build(a->send_ops_flags))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	struct ibv_qp *qp = ibv_create_qp(a->pd, (struct ibv_qp_init_attr *)a);
	if (qp && builds && iw_make_builder((struct iw_qp *)qp)) {
		ibv_destroy_qp(qp);
		errno = ENOMEM;
		return NULL;
	}
	return qp;
}

PUBLIC int ibv_destroy_qp(struct ibv_qp *qp)
{
	const struct iw_engine *e = engine();
	struct iw_qp *q = (struct iw_qp *)qp;
	int err = e ? e->destroy_qp(q->handle) : errno;
	if (err)
		return err;
	acknowledged(&qp->mutex, &qp->cond, &qp->events_completed, leave(IW_QPS, q->handle));
	iw_free_builder(q);
	free(q);
	return 0;
}

// The connection manager connects queue pairs; the states before that are the program's own.
PUBLIC int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	const struct iw_engine *e = engine();
	struct iw_qp *q = (struct iw_qp *)qp;
	if (!e)
		return errno;
	if (mask & IBV_QP_ACCESS_FLAGS)
		q->access = a->qp_access_flags;
	if (!(mask & IBV_QP_STATE))
		return 0;
	if (a->qp_state == IBV_QPS_ERR) {
		int err = e->fail_qp(q->handle);
		if (err)
			return err;
	}
	qp->state = a->qp_state;
	return 0;
}

PUBLIC int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *ia)
{
	const struct iw_engine *e = engine();
	struct iw_qp *q = (struct iw_qp *)qp;
	if (!e)
		return errno;
	enum ibv_qp_state s = e->qp_state(q->handle);
	if (s != IBV_QPS_RESET)
		qp->state = s;
	else if (qp->state == IBV_QPS_RESET)
		qp->state = IBV_QPS_INIT; // an RNIC's queue pair is idle from its creation on
	*a = (struct ibv_qp_attr){ .qp_state = qp->state, .cur_qp_state = qp->state, .path_mtu = IBV_MTU_1024, .cap = q->cap, .port_num = 1, .qp_access_flags = q->access };
	if (ia)
		*ia = (struct ibv_qp_init_attr){ .qp_context = qp->qp_context, .send_cq = qp->send_cq, .recv_cq = qp->recv_cq, .srq = qp->srq, .cap = q->cap, .qp_type = qp->qp_type, .sq_sig_all = q->sig_all };
	return 0;
}

// For librdmacm, between the kernel's structures and verbs.h's.
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

PUBLIC void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from)
{
	*to = (struct ibv_qp_attr){ .qp_state = from->qp_state, .cur_qp_state = from->cur_qp_state, .path_mtu = from->path_mtu,
		.qp_access_flags = from->qp_access_flags, .pkey_index = from->pkey_index, .port_num = from->port_num };
}
PUBLIC void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from) { memset(to, 0, sizeof *to); }
PUBLIC void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from) { memset(to, 0, sizeof *to); }
PUBLIC void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from) { memset(to, 0, sizeof *to); }
