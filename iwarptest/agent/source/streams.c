// Streams: how they come up and how they end.
#include "agent.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUEUE = 128 };

struct conn *find_conn(struct agent *a, const char *word)
{
	int i = atoi(word);
	return i >= 0 && i < MAX_CONNS && a->conns[i].id ? &a->conns[i] : NULL;
}

static struct conn *free_conn(struct agent *a)
{
	for (struct conn *c = a->conns; c < a->conns + MAX_CONNS; c++)
		if (!c->id)
			return c;
	return NULL;
}

static struct conn *conn_of(struct agent *a, struct rdma_cm_id *id)
{
	for (struct conn *c = a->conns; c < a->conns + MAX_CONNS; c++)
		if (c->id == id)
			return c;
	return NULL;
}

// lookup is the address of numbers; the caller frees it.
static struct rdma_addrinfo *lookup(char *addr, char *port, int flags)
{
	struct rdma_addrinfo *found = NULL, hints = {.ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};
	return rdma_getaddrinfo(addr, port, &hints, &found) ? NULL : found;
}

// handle takes an event of a stream that is up, or a peer's request, which it
// keeps. It acknowledges the event.
static void handle(struct agent *a, struct rdma_cm_event *e)
{
	struct conn *c = conn_of(a, e->id);
	if (c && e->event == RDMA_CM_EVENT_DISCONNECTED) {
		c->over = true;
		c->closing = false;
		rdma_disconnect(c->id); // has the queue pair flushed
	}
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST && a->nrequests < MAX_REQUESTS)
		a->requests[a->nrequests++] = (struct request){e->id, e->param.conn.responder_resources, e->param.conn.initiator_depth};
	printf("+cm %td %s %d\n", c ? c - a->conns : -1, rdma_event_str(e->event), e->status);
	rdma_ack_cm_event(e);
}

void take_cm_event(struct agent *a)
{
	struct rdma_cm_event *e;
	if (!rdma_get_cm_event(a->cm, &e))
		handle(a, e);
}

static time_t seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

// one_event handles the next event, if it comes soon; true: it is the event of id
// that is wanted, or ends the hope for it, and errno says which, 0 or an error.
static bool one_event(struct agent *a, struct rdma_cm_id *id, enum rdma_cm_event_type want)
{
	struct pollfd p = {.fd = a->cm->fd, .events = POLLIN};
	struct rdma_cm_event *e;
	take_completions(a);
	if (poll(&p, 1, TICK_MS) <= 0 || rdma_get_cm_event(a->cm, &e))
		return false;
	bool its = id && e->id == id;
	errno = e->event == want ? 0 : e->status < 0 ? -e->status : ECONNREFUSED;
	int error = errno;
	handle(a, e);
	errno = error;
	return its;
}

// got waits for an event of id; -1: there was another, or none in time, and errno
// says which.
static int got(struct agent *a, struct rdma_cm_id *id, enum rdma_cm_event_type want)
{
	for (time_t end = seconds() + SETUP_SECONDS; seconds() < end;)
		if (one_event(a, id, want))
			return errno ? -1 : 0;
	errno = ETIMEDOUT;
	return -1;
}

// equip gives a stream its queues.
static const char *equip(struct agent *a, struct conn *c, struct rdma_cm_id *id)
{
	memset(c, 0, sizeof *c);
	c->id = id;
	c->send_cq = ibv_create_cq(a->device, 2 * QUEUE, c, a->completions, 0);
	c->recv_cq = ibv_create_cq(a->device, 2 * QUEUE, c, a->completions, 0);
	if (!c->send_cq || !c->recv_cq)
		return "ibv_create_cq";
	ibv_req_notify_cq(c->send_cq, 0);
	ibv_req_notify_cq(c->recv_cq, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = c->send_cq,
		.recv_cq = c->recv_cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 6, .max_recv_sge = 6, .max_inline_data = 64},
	};
	return rdma_create_qp(id, a->pds[0], &attr) ? "rdma_create_qp" : NULL;
}

static void drop(struct conn *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->send_cq)
		ibv_destroy_cq(c->send_cq);
	if (c->recv_cq)
		ibv_destroy_cq(c->recv_cq);
	rdma_destroy_id(c->id);
	memset(c, 0, sizeof *c);
}

static struct rdma_conn_param reads(char *ird, char *ord)
{
	return (struct rdma_conn_param){.responder_resources = (uint8_t)atoi(ird), .initiator_depth = (uint8_t)atoi(ord), .retry_count = 1};
}

// listen ADDRESS PORT
void do_listen(struct agent *a, int n, char **w)
{
	struct rdma_addrinfo *to = n == 3 ? lookup(w[1], w[2], RAI_PASSIVE) : NULL;
	if (!to || a->listener)
		return no("listen ADDRESS PORT", 0);
	bool up = !rdma_create_id(a->cm, &a->listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(a->listener, to->ai_src_addr) && !rdma_listen(a->listener, 16);
	rdma_freeaddrinfo(to);
	if (!up)
		return no("rdma_listen", errno);
	done();
}

// accept IRD ORD: waits for a peer.
void do_accept(struct agent *a, int n, char **w)
{
	struct conn *c = n == 3 && a->listener ? free_conn(a) : NULL;
	if (!c)
		return no("accept IRD ORD", 0);
	for (time_t end = seconds() + SETUP_SECONDS; !a->nrequests && seconds() < end;)
		one_event(a, NULL, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!a->nrequests)
		return no("wait for a peer", ETIMEDOUT);
	struct request r = a->requests[0];
	memmove(a->requests, a->requests + 1, (size_t)--a->nrequests * sizeof r);
	struct rdma_cm_id *id = r.id;
	struct rdma_conn_param p = reads(w[1], w[2]);
	const char *failed = equip(a, c, id);
	if (!failed && rdma_accept(id, &p))
		failed = "rdma_accept";
	if (!failed && got(a, id, RDMA_CM_EVENT_ESTABLISHED))
		failed = "accept: wait for the stream";
	if (failed) {
		int error = errno;
		drop(c);
		return no(failed, error);
	}
	ok("%td %d %d", c - a->conns, r.ird, r.ord);
}

// connect ADDRESS PORT IRD ORD: the Write of nothing that follows lets the
// responder send.
void do_connect(struct agent *a, int n, char **w)
{
	struct conn *c = n == 5 ? free_conn(a) : NULL;
	struct rdma_addrinfo *to = c ? lookup(w[1], w[2], 0) : NULL;
	struct rdma_cm_id *id;
	if (!to)
		return no("connect ADDRESS PORT IRD ORD", 0);
	if (rdma_create_id(a->cm, &id, NULL, RDMA_PS_TCP)) {
		rdma_freeaddrinfo(to);
		return no("rdma_create_id", errno);
	}
	const char *failed = NULL;
	if (rdma_resolve_addr(id, NULL, to->ai_dst_addr, 10000) || got(a, id, RDMA_CM_EVENT_ADDR_RESOLVED))
		failed = "rdma_resolve_addr";
	else if (rdma_resolve_route(id, 10000) || got(a, id, RDMA_CM_EVENT_ROUTE_RESOLVED))
		failed = "rdma_resolve_route";
	rdma_freeaddrinfo(to);
	if (failed) {
		int error = errno;
		rdma_destroy_id(id);
		return no(failed, error);
	}
	struct rdma_conn_param p = reads(w[3], w[4]);
	failed = equip(a, c, id);
	if (!failed && (rdma_connect(id, &p) || got(a, id, RDMA_CM_EVENT_ESTABLISHED)))
		failed = "rdma_connect";
	if (!failed && (errno = post_nothing(c)))
		failed = "the first Write";
	if (failed) {
		int error = errno;
		drop(c);
		return no(failed, error);
	}
	c->opening = true;
	while (c->opening)
		take_completions(a);
	ok("%td", c - a->conns);
}

// close CONN: what is posted goes first; the Write of nothing shows when.
void do_close(struct agent *a, int n, char **w)
{
	struct conn *c = n == 2 ? find_conn(a, w[1]) : NULL;
	if (!c)
		return no("close CONN", 0);
	if (!c->over) {
		c->closing = true;
		if (post_nothing(c)) {
			c->closing = false;
			rdma_disconnect(c->id);
		}
	}
	done();
}

// abort CONN
void do_abort(struct agent *a, int n, char **w)
{
	struct conn *c = n == 2 ? find_conn(a, w[1]) : NULL;
	if (!c)
		return no("abort CONN", 0);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	int error = c->over ? 0 : ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
	if (error)
		return no("ibv_modify_qp", abs(error));
	done();
}

// free CONN
void do_free(struct agent *a, int n, char **w)
{
	struct conn *c = n == 2 ? find_conn(a, w[1]) : NULL;
	if (!c)
		return no("free CONN", 0);
	drop(c);
	done();
}
