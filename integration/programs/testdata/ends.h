// Two ends in one process, for the programs here.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)

enum { SIZE = 1 << 16 };

struct end {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *mem;
};

// event waits for an event of a channel, whatever signals come, and returns its ID.
static inline struct rdma_cm_id *event(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	int err;
	while ((err = rdma_get_cm_event(ch, &e)) && errno == EINTR) {}
	CHECK(!err);
	if (e->event != want) {
		printf("event %s (%d), not %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
		exit(1);
	}
	struct rdma_cm_id *id = e->id;
	CHECK(!rdma_ack_cm_event(e));
	return id;
}

static inline struct rdma_cm_id *listening(struct rdma_event_channel **ch, struct sockaddr_in *at, int backlog)
{
	struct rdma_cm_id *ln;
	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(*ch = rdma_create_event_channel());
	CHECK(!rdma_create_id(*ch, &ln, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(ln, (struct sockaddr *)at));
	CHECK(!rdma_listen(ln, backlog));
	CHECK(at->sin_port = rdma_get_src_port(ln));
	return ln;
}

static inline void objects(struct end *e)
{
	CHECK(e->pd = ibv_alloc_pd(e->id->verbs));
	CHECK(e->events = ibv_create_comp_channel(e->id->verbs));
	CHECK(e->cq = ibv_create_cq(e->id->verbs, 64, NULL, e->events, 0));
	CHECK(e->mem = calloc(1, SIZE));
	CHECK(e->mr = ibv_reg_mr(e->pd, e->mem, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	struct ibv_qp_init_attr a = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 } };
	CHECK(!rdma_create_qp(e->id, e->pd, &a));
}

// connect_ends connects a, with a channel of its own, to b, by the listener's.
static inline void connect_ends(struct rdma_event_channel *ln, struct sockaddr_in *at, struct end *a, struct end *b)
{
	struct rdma_conn_param c = { .responder_resources = 4, .initiator_depth = 4 };
	memset(a, 0, sizeof *a);
	memset(b, 0, sizeof *b);
	CHECK(a->ch = rdma_create_event_channel());
	CHECK(!rdma_create_id(a->ch, &a->id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(a->id, NULL, (struct sockaddr *)at, 5000));
	event(a->ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(a->id, 5000));
	event(a->ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	objects(a);
	CHECK(!rdma_connect(a->id, &c));
	b->id = event(ln, RDMA_CM_EVENT_CONNECT_REQUEST);
	objects(b);
	CHECK(!rdma_accept(b->id, &c));
	event(a->ch, RDMA_CM_EVENT_ESTABLISHED);
	event(ln, RDMA_CM_EVENT_ESTABLISHED);
}

static inline void destroy(struct end *e)
{
	rdma_destroy_qp(e->id);
	CHECK(!rdma_destroy_id(e->id));
	CHECK(!ibv_destroy_cq(e->cq));
	CHECK(!ibv_destroy_comp_channel(e->events));
	CHECK(!ibv_dereg_mr(e->mr));
	CHECK(!ibv_dealloc_pd(e->pd));
	if (e->ch)
		rdma_destroy_event_channel(e->ch);
	free(e->mem);
}

// disconnect_ends ends the connection of a and b, and both.
static inline void disconnect_ends(struct rdma_event_channel *ln, struct end *a, struct end *b)
{
	CHECK(!rdma_disconnect(a->id));
	event(ln, RDMA_CM_EVENT_DISCONNECTED);
	event(a->ch, RDMA_CM_EVENT_DISCONNECTED);
	destroy(a);
	destroy(b);
}

// next waits for a completion: by events, or by polling.
static inline struct ibv_wc next(struct end *e, int by_events)
{
	struct ibv_wc wc;
	for (int armed = 0;;) {
		int n = ibv_poll_cq(e->cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		if (!by_events)
			continue;
		if (armed) {
			struct ibv_cq *cq;
			void *context;
			int err;
			while ((err = ibv_get_cq_event(e->events, &cq, &context)) && errno == EINTR) {}
			CHECK(!err && cq == e->cq);
			ibv_ack_cq_events(cq, 1);
		}
		armed = !armed;
		if (armed)
			CHECK(!ibv_req_notify_cq(e->cq, 0));
	}
}

static inline void receive(struct end *e, uint64_t id, unsigned off, unsigned n)
{
	struct ibv_sge s = { (uintptr_t)e->mem + off, n, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(e->id->qp, &wr, &bad));
}

static inline void post(struct end *e, enum ibv_wr_opcode op, uint64_t id, unsigned off, unsigned n, uint64_t raddr, uint32_t rkey)
{
	struct ibv_sge s = { (uintptr_t)e->mem + off, n, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .sg_list = &s, .num_sge = 1, .wr.rdma = { raddr, rkey } }, *bad;
	CHECK(!ibv_post_send(e->id->qp, &wr, &bad));
}

// exchange moves n bytes, which i is in, by each kind of work request, and compares.
static inline void exchange(struct end *a, struct end *b, unsigned i, unsigned n, int by_events)
{
	for (unsigned k = 0; k < n; k++)
		a->mem[k] = i * 31 + k;
	receive(b, 1, 0, n);
	post(a, IBV_WR_SEND, 2, 0, n, 0, 0);
	struct ibv_wc wc = next(a, by_events);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
	wc = next(b, by_events);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == n && !memcmp(a->mem, b->mem, n));
	post(a, IBV_WR_RDMA_WRITE, 3, 0, n, (uintptr_t)b->mem + SIZE / 2, b->mr->rkey);
	post(a, IBV_WR_RDMA_READ, 4, SIZE / 2, n, (uintptr_t)b->mem + SIZE / 2, b->mr->rkey);
	wc = next(a, by_events);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	wc = next(a, by_events);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_SUCCESS && !memcmp(a->mem, a->mem + SIZE / 2, n));
}
