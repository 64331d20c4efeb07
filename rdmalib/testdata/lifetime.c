// How long what a program has of the library lasts: ../c/objects.c, device.c and data.c, with an engine that does nothing by itself.
#include "lib.h"
#include <stdio.h>
#include <unistd.h>

int late;
void hold_signals(sigset_t *was) {}
void release_signals(const sigset_t *was) {}
void redirect(void *caller) {}
int started_by_run(void) { return 1; }
int iw_can_build(uint64_t operations) { return 0; }
int iw_make_builder(struct iw_qp *q) { return ENOMEM; }
void iw_free_builder(struct iw_qp *q) {}

static uint32_t handles;
static int make_cq(struct iw_ring *r, uint32_t *h) { *h = ++handles; return 0; }
static int make_srq(uint32_t pd, uint32_t n, uint32_t sges, uint32_t *h) { *h = ++handles; return 0; }
static int make_qp(struct iw_qp_config *c, uint32_t *h) { *h = ++handles; return 0; }
static int gone(uint32_t h) { return 0; }

// resize is the engine's: what the old ring was armed for is the new one's.
static struct iw_ring *ring;
static int resize(uint32_t h, struct iw_ring *r)
{
	r->armed = __atomic_load_n(&ring->armed, __ATOMIC_SEQ_CST);
	ring = r;
	return 0;
}

static struct iw_engine table = { .create_cq = make_cq, .resize_cq = resize, .destroy_cq = gone, .create_srq = make_srq, .destroy_srq = gone,
	.create_qp = make_qp, .destroy_qp = gone };
const struct iw_engine *engine_to_post(void) { return &table; }
const struct iw_engine *engine(void) { return &table; }

#define CHECK(x) do { if (!(x)) { printf("%s, line %d\n", #x, __LINE__); exit(1); } } while (0)

// A queue is armed by one thread while another gives it rings: it stays armed.
static int done;
static void *resizes(void *cq)
{
	for (int i = 0; i < 5000; i++)
		CHECK(!ibv_resize_cq(cq, i % 2 ? 100 : 10));
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void arm(struct ibv_context *c)
{
	struct ibv_cq *cq = ibv_create_cq(c, 10, NULL, NULL, 0);
	pthread_t t;
	CHECK(cq);
	struct iw_cq *q = (struct iw_cq *)cq;
	ring = q->ring;
	CHECK(!pthread_create(&t, NULL, resizes, cq));
	while (!__atomic_load_n(&done, __ATOMIC_SEQ_CST)) {
		CHECK(!iw_req_notify_cq(cq, 0));
		pthread_spin_lock(&q->lock);
		CHECK(q->ring->armed);
		__atomic_store_n(&q->ring->armed, 0, __ATOMIC_SEQ_CST);
		pthread_spin_unlock(&q->lock);
	}
	pthread_join(t, NULL);
	CHECK(!ibv_destroy_cq(cq));
}

static void *destroys_cq(void *x) { return (void *)(intptr_t)ibv_destroy_cq(x); }
static void *destroys_qp(void *x) { return (void *)(intptr_t)ibv_destroy_qp(x); }
static void *destroys_srq(void *x) { return (void *)(intptr_t)ibv_destroy_srq(x); }

// What an asynchronous event is about stays until that is acknowledged.
static void acknowledge(struct ibv_context *c, uint32_t kind, uint32_t handle, void *(*destroys)(void *), void *x)
{
	struct ibv_async_event e;
	pthread_t t;
	void *err;
	for (int i = 0; i < 3; i++) // and the last is taken by nobody
		async_event(kind, handle);
	CHECK(!ibv_get_async_event(c, &e) && !ibv_get_async_event(c, &e));
	CHECK(e.event_type == kind && (void *)e.element.qp == x);
	ibv_ack_async_event(&e);
	CHECK(!pthread_create(&t, NULL, destroys, x));
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 50 * 1000 * 1000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	CHECK(pthread_timedjoin_np(t, &err, &until) == ETIMEDOUT); // it waits
	ibv_ack_async_event(&e);
	CHECK(!pthread_join(t, &err) && !err);
}

int main(int argc, char **argv)
{
	struct ibv_context *c = ibv_open_device(ibv_get_device_list(NULL)[0]);
	CHECK(c);
	if (argc > 1 && !strcmp(argv[1], "arm")) {
		arm(c);
		return 0;
	}
	struct ibv_pd pd = { .context = c };
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(&pd, &sa);
	CHECK(srq);
	struct ibv_cq *cq = ibv_create_cq(c, 10, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 1, .max_recv_wr = 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(&pd, &qa);
	CHECK(qp);
	acknowledge(c, IBV_EVENT_QP_FATAL, qp->handle, destroys_qp, qp);
	acknowledge(c, IBV_EVENT_SRQ_LIMIT_REACHED, ((struct iw_srq *)srq)->handle, destroys_srq, srq);
	acknowledge(c, IBV_EVENT_CQ_ERR, ((struct iw_cq *)cq)->handle, destroys_cq, cq);
	return 0;
}
