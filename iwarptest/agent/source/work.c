// Work requests and completions.
#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// parse_sges reads triples REGION OFFSET BYTES; -1: they are wrong.
static int parse_sges(struct agent *a, struct ibv_sge *sges, int n, char **w)
{
	if (n % 3 || n / 3 > MAX_SGES)
		return -1;
	for (int i = 0; i < n / 3; i++, w += 3) {
		struct region *r = find_region(a, w[0]);
		if (!r)
			return -1;
		sges[i].addr = (uintptr_t)r->memory + r->guard + (uintptr_t)atol(w[1]);
		sges[i].length = (uint32_t)strtoul(w[2], NULL, 0);
		sges[i].lkey = r->mr ? r->mr->lkey : 0;
	}
	return n / 3;
}

// recv CONN ID [REGION OFFSET BYTES]...
void do_recv(struct agent *a, int n, char **w)
{
	struct conn *c = n >= 3 ? find_conn(a, w[1]) : NULL;
	struct ibv_sge sges[MAX_SGES] = {};
	int count = c ? parse_sges(a, sges, n - 3, w + 3) : -1;
	if (count < 0)
		return no("recv CONN ID [REGION OFFSET BYTES]...", 0);
	struct ibv_recv_wr *bad, wr = {.wr_id = strtoull(w[2], NULL, 0), .sg_list = sges};
	// libsiw refuses a receive without any element.
	wr.num_sge = count ? count : 1;
	int error = ibv_post_recv(c->id->qp, &wr, &bad);
	if (error)
		return no("ibv_post_recv", abs(error));
	c->waiting_recvs++;
	done();
}

static const struct {
	const char *name;
	enum ibv_wr_opcode op;
} opcodes[] = {
	{"send", IBV_WR_SEND},		     {"sendinv", IBV_WR_SEND_WITH_INV},
	{"write", IBV_WR_RDMA_WRITE},	     {"read", IBV_WR_RDMA_READ},
	{"fetchadd", IBV_WR_ATOMIC_FETCH_AND_ADD}, {"sendimm", IBV_WR_SEND_WITH_IMM},
};

// send CONN ID OPCODE FLAGS STAG TO [REGION OFFSET BYTES]...: FLAGS of the
// letters s (signaled), e (solicited event), f (fence), i (inline), or -; STAG is
// what sendinv invalidates, too.
void do_send(struct agent *a, int n, char **w)
{
	struct conn *c = n >= 7 ? find_conn(a, w[1]) : NULL;
	struct ibv_sge sges[MAX_SGES] = {};
	int count = c ? parse_sges(a, sges, n - 7, w + 7) : -1;
	size_t op = 0;
	while (c && op < sizeof opcodes / sizeof *opcodes && strcmp(w[3], opcodes[op].name))
		op++;
	if (count < 0 || op == sizeof opcodes / sizeof *opcodes)
		return no("send CONN ID OPCODE FLAGS STAG TO [REGION OFFSET BYTES]...", 0);
	struct ibv_send_wr *bad, wr = {.wr_id = strtoull(w[2], NULL, 0), .sg_list = sges, .num_sge = count};
	wr.opcode = opcodes[op].op;
	for (const char *p = w[4]; *p; p++)
		wr.send_flags |= *p == 's'   ? IBV_SEND_SIGNALED
				 : *p == 'e' ? IBV_SEND_SOLICITED
				 : *p == 'f' ? IBV_SEND_FENCE
				 : *p == 'i' ? IBV_SEND_INLINE
					     : 0;
	wr.wr.rdma.rkey = (uint32_t)strtoul(w[5], NULL, 0);
	wr.wr.rdma.remote_addr = strtoull(w[6], NULL, 0);
	if (wr.opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = wr.wr.rdma.rkey; // libsiw reads the other one
	if (wr.opcode == IBV_WR_RDMA_READ && !count)
		wr.num_sge = 1;
	if (c->over)
		return no("the stream is over", 0);
	if (wr.send_flags & IBV_SEND_SIGNALED)
		c->waiting_sends++; // also when it fails: it may complete all the same
	int error = ibv_post_send(c->id->qp, &wr, &bad);
	if (error)
		return no("ibv_post_send", abs(error));
	done();
}

// post_nothing posts a Write of no bytes.
int post_nothing(struct conn *c)
{
	struct ibv_sge none = {};
	struct ibv_send_wr *bad, wr = {.wr_id = OWN_ID, .sg_list = &none, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	c->waiting_sends++;
	int error = abs(ibv_post_send(c->id->qp, &wr, &bad));
	if (error)
		c->waiting_sends--;
	return error;
}

static const char *kind(enum ibv_wc_opcode op)
{
	switch (op) {
	case IBV_WC_RECV:
		return "recv";
	case IBV_WC_SEND:
		return "send";
	case IBV_WC_RDMA_WRITE:
		return "write";
	case IBV_WC_RDMA_READ:
		return "read";
	default:
		return "other";
	}
}

// A completion is told as: +wc CONN ID KIND BYTES STATUS, STATUS a number of
// libibverbs and its text.
static void take_queue(struct agent *a, struct conn *c, struct ibv_cq *cq, int *waiting)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		--*waiting;
		if (wc.wr_id == OWN_ID) {
			c->opening = false;
			continue;
		}
		printf("+wc %td %llu %s %u %d %s\n", c - a->conns, (unsigned long long)wc.wr_id, kind(wc.opcode), wc.byte_len, wc.status, ibv_wc_status_str(wc.status));
	}
}

// take_completions also ends what waits for completions: a graceful close, and
// the news that a stream is over.
void take_completions(struct agent *a)
{
	for (struct conn *c = a->conns; c < a->conns + MAX_CONNS; c++) {
		if (!c->id || !c->send_cq || c->told)
			continue;
		take_queue(a, c, c->send_cq, &c->waiting_sends);
		take_queue(a, c, c->recv_cq, &c->waiting_recvs);
		if (c->closing && c->waiting_sends <= 0) {
			c->closing = false;
			rdma_disconnect(c->id);
		}
		bool done = c->waiting_sends <= 0 && c->waiting_recvs <= 0;
		if (c->over && (done || c->ticks > DRAIN_TICKS)) {
			c->told = true;
			printf("+end %td %d\n", c - a->conns, done ? 0 : c->waiting_sends + c->waiting_recvs);
		}
	}
}

// take_notifications arms the queues again that the completion channel names.
void take_notifications(struct agent *a)
{
	struct ibv_cq *cq;
	void *context;
	while (!ibv_get_cq_event(a->completions, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		ibv_req_notify_cq(cq, 0);
	}
	take_completions(a); // what came before they were armed
}
