// A program that uses what others here do not: ibv_wr_*, extended completion queues, windows, shared receive queues and
// their limit, resized queues, statuses of errors. Both ends are in it. It ends with "all is well", or at the first thing
// that is not.
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)

enum { SIZE = 1 << 16, DEPTH = 64 };

struct end {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_cq_ex *cqx;
	struct ibv_comp_channel *ch;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	char *mem;
};

static unsigned sges = 2; // of the lists of queues

static struct sockaddr_in address = { .sin_family = AF_INET };

static void objects(struct end *e, int with_srq)
{
	CHECK(e->pd = ibv_alloc_pd(e->id->verbs));
	CHECK(e->ch = ibv_create_comp_channel(e->id->verbs));
	struct ibv_cq_init_attr_ex ca = { .cqe = DEPTH, .channel = e->ch, .wc_flags = IBV_WC_STANDARD_FLAGS };
	CHECK(e->cqx = ibv_create_cq_ex(e->id->verbs, &ca));
	e->cq = ibv_cq_ex_to_cq(e->cqx);
	CHECK(e->mem = aligned_alloc(4096, SIZE));
	memset(e->mem, 0, SIZE);
	CHECK(e->mr = ibv_reg_mr(e->pd, e->mem, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
	if (with_srq) {
		struct ibv_srq_init_attr sa = { .attr = { .max_wr = DEPTH, .max_sge = sges } };
		CHECK(e->srq = ibv_create_srq(e->pd, &sa));
		CHECK(sa.attr.max_sge >= sges);
	}
	struct ibv_qp_init_attr_ex a = {
		.send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH / 2, .max_recv_wr = with_srq ? 0 : DEPTH / 2, .max_send_sge = sges, .max_recv_sge = with_srq ? 0 : sges, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = e->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	CHECK(!rdma_create_qp_ex(e->id, &a));
	CHECK(a.cap.max_send_sge >= sges && (with_srq || a.cap.max_recv_sge >= sges));
	CHECK(ibv_qp_to_qp_ex(e->id->qp));
}

static void *dial(void *p)
{
	struct end *e = p;
	CHECK(!rdma_create_id(NULL, &e->id, NULL, RDMA_PS_TCP)); // synchronous
	CHECK(!rdma_resolve_addr(e->id, NULL, (struct sockaddr *)&address, 5000));
	CHECK(!rdma_resolve_route(e->id, 5000));
	objects(e, 0);
	struct rdma_conn_param c = { .responder_resources = 4, .initiator_depth = 4, .private_data = "hello", .private_data_len = 5 };
	CHECK(!rdma_connect(e->id, &c));
	return NULL;
}

static void connect_ends(struct rdma_cm_id *ln, struct end *a, struct end *b, int with_srq)
{
	pthread_t t;
	memset(a, 0, sizeof *a);
	memset(b, 0, sizeof *b);
	CHECK(!pthread_create(&t, NULL, dial, a));
	CHECK(!rdma_get_request(ln, &b->id));
	CHECK(b->id->event->param.conn.private_data_len >= 5 && !memcmp(b->id->event->param.conn.private_data, "hello", 5));
	objects(b, with_srq);
	struct rdma_conn_param c = { .responder_resources = 4, .initiator_depth = 4 };
	CHECK(!rdma_accept(b->id, &c));
	CHECK(!pthread_join(t, NULL));
}

static void destroy(struct end *e)
{
	rdma_destroy_qp(e->id);
	if (e->srq)
		CHECK(!ibv_destroy_srq(e->srq));
	CHECK(!ibv_destroy_cq(e->cq));
	CHECK(!ibv_destroy_comp_channel(e->ch));
	if (e->mr)
		CHECK(!ibv_dereg_mr(e->mr));
	CHECK(!ibv_dealloc_pd(e->pd));
	rdma_destroy_id(e->id);
	free(e->mem);
}

// next waits for a completion, by events, and returns it.
static struct ibv_wc next(struct end *e)
{
	struct ibv_wc wc;
	for (int armed = 0;; armed = 1) {
		int n = ibv_poll_cq(e->cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		if (armed) {
			struct ibv_cq *cq;
			void *context;
			CHECK(!ibv_get_cq_event(e->ch, &cq, &context));
			CHECK(cq == e->cq);
			ibv_ack_cq_events(cq, 1);
		}
		CHECK(!ibv_req_notify_cq(e->cq, 0));
		n = ibv_poll_cq(e->cq, 1, &wc);
		if (n)
			return wc;
	}
}

static void expect(struct end *e, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next(e);
	if (wc.wr_id != id || wc.status != status) {
		printf("completion %lu, %s; wanted %lu, %s\n", wc.wr_id, ibv_wc_status_str(wc.status), id, ibv_wc_status_str(status));
		exit(1);
	}
}

static void recv_at(struct end *e, uint64_t id, unsigned off, unsigned n)
{
	struct ibv_sge s = { (uintptr_t)e->mem + off, n, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;
	CHECK(!(e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->id->qp, &wr, &bad)));
}

static void built(struct end *a, struct end *b)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(a->id->qp);
	char text[] = "inline, by a call";
	recv_at(b, 1, 0, 100);
	recv_at(b, 2, 1000, 100);
	strcpy(a->mem + 512, "from two ");
	strcpy(a->mem + 600, "pieces");
	ibv_wr_start(x);
	x->wr_id = 10;
	x->wr_flags = 0;
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, text, sizeof text);
	memset(text, '?', sizeof text - 1); // it has been copied
	x->wr_id = 11;
	x->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	struct ibv_sge list[] = { { (uintptr_t)a->mem + 512, 9, a->mr->lkey }, { (uintptr_t)a->mem + 600, 7, a->mr->lkey } };
	ibv_wr_send(x);
	ibv_wr_set_sge_list(x, 2, list);
	x->wr_id = 12;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, b->mr->rkey, (uintptr_t)b->mem + 5000);
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem + 512, 9);
	x->wr_id = 13;
	ibv_wr_rdma_read(x, b->mr->rkey, (uintptr_t)b->mem + 5000);
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem + 700, 9);
	CHECK(!ibv_wr_complete(x));
	expect(a, 11, IBV_WC_SUCCESS);
	expect(a, 12, IBV_WC_SUCCESS);
	expect(a, 13, IBV_WC_SUCCESS);
	expect(b, 1, IBV_WC_SUCCESS);
	expect(b, 2, IBV_WC_SUCCESS);
	CHECK(!strcmp(b->mem, "inline, by a call") && !strcmp(b->mem + 1000, "from two pieces") && !memcmp(a->mem + 700, "from two ", 9));

	*(uint64_t *)(b->mem + 6000) = 40;
	ibv_wr_start(x);
	x->wr_id = 14;
	ibv_wr_atomic_fetch_add(x, b->mr->rkey, (uintptr_t)b->mem + 6000, 2);
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem + 800, 8);
	x->wr_id = 15;
	ibv_wr_atomic_cmp_swp(x, b->mr->rkey, (uintptr_t)b->mem + 6000, 42, 7);
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem + 808, 8);
	CHECK(!ibv_wr_complete(x));
	expect(a, 14, IBV_WC_SUCCESS);
	expect(a, 15, IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)(a->mem + 800) == 40 && *(uint64_t *)(a->mem + 808) == 42 && *(uint64_t *)(b->mem + 6000) == 7);

	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_abort(x);
	ibv_wr_start(x);
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem, 1); // of nothing
	CHECK(ibv_wr_complete(x) == EINVAL);

	// Immediate data, and an extended queue.
	recv_at(b, 3, 0, 8);
	ibv_wr_start(x);
	x->wr_id = 16;
	ibv_wr_rdma_write_imm(x, b->mr->rkey, (uintptr_t)b->mem + 7000, htobe32(0xfeedbeef));
	ibv_wr_set_sge(x, a->mr->lkey, (uintptr_t)a->mem + 512, 9);
	CHECK(!ibv_wr_complete(x));
	expect(a, 16, IBV_WC_SUCCESS);
	struct ibv_poll_cq_attr pa = {};
	while (ibv_start_poll(b->cqx, &pa) == ENOENT) {}
	CHECK(b->cqx->wr_id == 3 && b->cqx->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(b->cqx) == IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(ibv_wc_read_imm_data(b->cqx) == htobe32(0xfeedbeef) && ibv_wc_read_byte_len(b->cqx) == 9 && ibv_wc_read_wc_flags(b->cqx) & IBV_WC_WITH_IMM);
	CHECK(ibv_wc_read_qp_num(b->cqx) == b->id->qp->qp_num && ibv_next_poll(b->cqx) == ENOENT);
	ibv_end_poll(b->cqx);
}

static void windows(struct end *a, struct end *b)
{
	struct ibv_mw *mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
	CHECK(mw && mw->rkey);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr bind = { .wr_id = 20, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = { .mw = mw, .rkey = key + 256,
		.bind_info = { .mr = b->mr, .addr = (uintptr_t)b->mem + 8192, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } } }, *bad;
	CHECK(ibv_post_send(b->id->qp, &bind, &bad) == EINVAL && bad == &bind); // no more than the key is the program's to choose
	bind.bind_mw.rkey = mw->rkey;
	CHECK(ibv_post_send(b->id->qp, &bind, &bad) == EINVAL); // a key that is not the last one
	bind.bind_mw.rkey = key;
	CHECK(!ibv_post_send(b->id->qp, &bind, &bad));
	expect(b, 20, IBV_WC_SUCCESS);
	CHECK(mw->rkey == key && ibv_dereg_mr(b->mr) == EBUSY);
	strcpy(a->mem, "through a window");
	struct ibv_sge s = { (uintptr_t)a->mem, 17, a->mr->lkey };
	struct ibv_send_wr w = { .wr_id = 21, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &s, .num_sge = 1, .wr.rdma = { (uintptr_t)b->mem + 8200, key } };
	CHECK(!ibv_post_send(a->id->qp, &w, &bad));
	expect(a, 21, IBV_WC_SUCCESS);
	recv_at(b, 22, 0, 8); // behind it the peer invalidates the window
	struct ibv_send_wr inv = { .wr_id = 23, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = mw->rkey };
	CHECK(!ibv_post_send(a->id->qp, &inv, &bad));
	expect(a, 23, IBV_WC_SUCCESS);
	struct ibv_wc wc = next(b);
	CHECK(wc.wr_id == 22 && wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == mw->rkey);
	CHECK(!strcmp(b->mem + 8200, "through a window"));

	// By calls, and often enough for keys to come again. The peer is told of the key before the bind is done.
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(b->id->qp);
	for (int i = 0; i < 300; i++) {
		key = ibv_inc_rkey(key);
		struct ibv_mw_bind_info bi = { .mr = b->mr, .addr = (uintptr_t)b->mem + 8192, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
		recv_at(a, 24, 16, 4);
		ibv_wr_start(x);
		x->wr_id = 25;
		x->wr_flags = 0;
		ibv_wr_bind_mw(x, mw, key, &bi);
		x->wr_id = 26;
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(x);
		ibv_wr_set_inline_data(x, &key, 4);
		CHECK(!ibv_wr_complete(x));
		expect(b, 26, IBV_WC_SUCCESS);
		expect(a, 24, IBV_WC_SUCCESS);
		CHECK(!memcmp(a->mem + 16, &key, 4) && mw->rkey == key);
		memcpy(a->mem, &i, 4);
		struct ibv_sge s4 = { (uintptr_t)a->mem, 4, a->mr->lkey };
		struct ibv_send_wr w4 = { .wr_id = 27, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &s4, .num_sge = 1, .wr.rdma = { (uintptr_t)b->mem + 8192, key } };
		struct ibv_send_wr done = { .wr_id = 28, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
		w4.next = &done;
		recv_at(b, 29, 0, 8);
		CHECK(!ibv_post_send(a->id->qp, &w4, &bad));
		expect(a, 28, IBV_WC_SUCCESS);
		expect(b, 29, IBV_WC_SUCCESS);
		CHECK(!memcmp(b->mem + 8192, &i, 4));
		ibv_wr_start(x);
		x->wr_id = 30;
		ibv_wr_local_inv(x, key);
		CHECK(!ibv_wr_complete(x));
		expect(b, 30, IBV_WC_SUCCESS);
	}
	CHECK(!ibv_dealloc_mw(mw));
}

static void resized(struct end *a, struct end *b)
{
	CHECK(!ibv_resize_cq(b->cq, 500) && b->cq->cqe >= 500);
	recv_at(b, 30, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 31, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(a->id->qp, &wr, &bad));
	expect(a, 31, IBV_WC_SUCCESS);
	expect(b, 30, IBV_WC_SUCCESS);
}

// What the peer does wrong, and what it is told.
static void faults(struct rdma_cm_id *ln)
{
	struct end a, b;
	struct ibv_send_wr *bad;
	struct ibv_sge s;
	struct { const char *name; enum ibv_wr_opcode op; uint64_t raddr; uint32_t key, n; unsigned receive; enum ibv_wc_status send, recv; } all[] = {
		{ "write past the end", IBV_WR_RDMA_WRITE, SIZE - 8, 0, 16, 64, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
		{ "read with another key", IBV_WR_RDMA_READ, 0, 12345, 16, 64, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR },
		{ "a message too long", IBV_WR_SEND, 0, 0, 128, 64, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR },
		{ "no receive", IBV_WR_SEND, 0, 0, 8, 0, IBV_WC_RNR_RETRY_EXC_ERR, 0 },
	};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		connect_ends(ln, &a, &b, 0);
		if (all[i].receive)
			recv_at(&b, 40, 0, all[i].receive);
		s = (struct ibv_sge){ (uintptr_t)a.mem, all[i].n, a.mr->lkey };
		// A Read behind it: what nothing answers is outstanding when the Terminate comes.
		struct ibv_sge s2 = { (uintptr_t)a.mem + 4096, 8, a.mr->lkey };
		struct ibv_send_wr second = { .wr_id = 42, .opcode = IBV_WR_RDMA_READ, .sg_list = &s2, .num_sge = 1, .wr.rdma = { (uintptr_t)b.mem, b.mr->rkey } };
		struct ibv_send_wr first = { .wr_id = 41, .next = &second, .opcode = all[i].op, .sg_list = &s, .num_sge = 1, .wr.rdma = { (uintptr_t)b.mem + all[i].raddr, b.mr->rkey ^ all[i].key } };
		CHECK(!ibv_post_send(a.id->qp, &first, &bad));
		struct ibv_wc wc = next(&a);
		if (wc.status != all[i].send) {
			printf("%s: the sender is told %s of %lu\n", all[i].name, ibv_wc_status_str(wc.status), wc.wr_id);
			exit(1);
		}
		if (all[i].receive) {
			wc = next(&b);
			if (wc.wr_id != 40 || wc.status != all[i].recv) {
				printf("%s: the receiver is told %s\n", all[i].name, ibv_wc_status_str(wc.status));
				exit(1);
			}
		}
		struct ibv_qp_attr qa;
		struct ibv_qp_init_attr qi;
		CHECK(!ibv_query_qp(b.id->qp, &qa, IBV_QP_STATE, &qi));
		destroy(&a);
		destroy(&b);
	}
}

static void shared(struct rdma_cm_id *ln)
{
	struct end a, b;
	connect_ends(ln, &a, &b, 1);
	for (int i = 0; i < 4; i++)
		recv_at(&b, 50 + i, 64 * i, 64);
	struct ibv_srq_attr sa = { .srq_limit = 3 };
	CHECK(!ibv_modify_srq(b.srq, &sa, IBV_SRQ_LIMIT));
	struct ibv_send_wr wr = { .wr_id = 60, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_post_send(a.id->qp, &wr, &bad));
		expect(&a, 60, IBV_WC_SUCCESS);
		expect(&b, 50 + i, IBV_WC_SUCCESS);
	}
	struct ibv_async_event ev;
	CHECK(!ibv_get_async_event(b.id->verbs, &ev));
	CHECK(ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && ev.element.srq == b.srq);
	ibv_ack_async_event(&ev);
	CHECK(!rdma_disconnect(a.id));
	destroy(&a);
	destroy(&b);
}

// Lists as long as the device has them, of each kind of work request and of both ways to post; one more element is refused.
static void lists(struct rdma_cm_id *ln, int with_srq)
{
	struct end a, b;
	struct ibv_device_attr da;
	CHECK(!ibv_query_device(ln->verbs, &da) && da.max_sge == 30 && da.max_sge_rd == 30 && da.max_srq_sge == 30);
	sges = da.max_sge;
	connect_ends(ln, &a, &b, with_srq);
	struct ibv_sge from[31], to[31], back[31];
	char want[31 * 31] = "", got[31 * 31] = "";
	unsigned n = 0;
	for (unsigned i = 0; i < sges; i++) {
		from[i] = (struct ibv_sge){ (uintptr_t)a.mem + 1000 * (i * 7 % sges), i, a.mr->lkey };
		memset(a.mem + 1000 * (i * 7 % sges), 'a' + i % 26, i);
		memcpy(want + n, a.mem + 1000 * (i * 7 % sges), i);
		n += i;
	}
	for (unsigned i = 0; i < sges; i++) {
		to[i] = (struct ibv_sge){ (uintptr_t)b.mem + 1000 * i, sges - 1 - i, b.mr->lkey };
		back[i] = (struct ibv_sge){ (uintptr_t)a.mem + 1000 * i + 500, sges - 1 - i, a.mr->lkey };
	}
	struct ibv_recv_wr rwr = { .wr_id = 70, .sg_list = to, .num_sge = sges }, *badr;
	CHECK(!(b.srq ? ibv_post_srq_recv(b.srq, &rwr, &badr) : ibv_post_recv(b.id->qp, &rwr, &badr)));
	rwr.num_sge++;
	to[sges] = from[sges] = to[0];
	CHECK((b.srq ? ibv_post_srq_recv(b.srq, &rwr, &badr) : ibv_post_recv(b.id->qp, &rwr, &badr)) == EINVAL);
	struct ibv_send_wr wr = { .wr_id = 71, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = from, .num_sge = sges }, *bad;
	CHECK(!ibv_post_send(a.id->qp, &wr, &bad));
	expect(&a, 71, IBV_WC_SUCCESS);
	struct ibv_wc wc = next(&b);
	CHECK(wc.wr_id == 70 && wc.byte_len == n);
	for (unsigned i = 0, off = 0; i < sges; off += to[i++].length)
		memcpy(got + off, (void *)(uintptr_t)to[i].addr, to[i].length);
	CHECK(!memcmp(got, want, n));
	wr.num_sge++;
	CHECK(ibv_post_send(a.id->qp, &wr, &bad) == EINVAL);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(a.id->qp);
	ibv_wr_start(x);
	x->wr_id = 72;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, b.mr->rkey, (uintptr_t)b.mem + 40000);
	ibv_wr_set_sge_list(x, sges, from);
	x->wr_id = 73;
	ibv_wr_rdma_read(x, b.mr->rkey, (uintptr_t)b.mem + 40000);
	ibv_wr_set_sge_list(x, sges, back);
	for (int i = 0; i < 20; i++) { // their lists move when there are more
		x->wr_id = 74;
		ibv_wr_rdma_write(x, b.mr->rkey, (uintptr_t)b.mem + 42000);
		ibv_wr_set_sge(x, a.mr->lkey, (uintptr_t)a.mem, 1);
	}
	CHECK(!ibv_wr_complete(x));
	expect(&a, 72, IBV_WC_SUCCESS);
	expect(&a, 73, IBV_WC_SUCCESS);
	for (int i = 0; i < 20; i++)
		expect(&a, 74, IBV_WC_SUCCESS);
	CHECK(!memcmp(b.mem + 40000, want, n));
	for (unsigned i = 0, off = 0; i < sges; off += back[i++].length)
		CHECK(!memcmp(want + off, (void *)(uintptr_t)back[i].addr, back[i].length));
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, b.mr->rkey, (uintptr_t)b.mem + 40000);
	ibv_wr_set_sge_list(x, sges + 1, from);
	CHECK(ibv_wr_complete(x) == EINVAL);
	CHECK(!rdma_disconnect(a.id));
	destroy(&a);
	destroy(&b);
	sges = 2;
}

int main(void)
{
	struct rdma_cm_id *ln;
	struct end a, b;
	setvbuf(stdout, NULL, _IOLBF, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!rdma_create_id(NULL, &ln, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(ln, (struct sockaddr *)&address));
	CHECK(!rdma_listen(ln, 8));
	address.sin_port = rdma_get_src_port(ln);
	CHECK(address.sin_port);
	connect_ends(ln, &a, &b, 0);
	built(&a, &b);
	windows(&a, &b);
	resized(&a, &b);
	CHECK(!rdma_disconnect(a.id));
	destroy(&a);
	destroy(&b);
	shared(ln);
	lists(ln, 0);
	lists(ln, 1);
	faults(ln);
	rdma_destroy_id(ln);
	printf("all is well\n");
	return 0;
}
