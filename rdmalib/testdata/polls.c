// What polling costs: ../c/data.c on a completion queue and a socket of its own, with an engine that counts.
#include "lib.h"
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int late;
void hold_signals(sigset_t *was) {}
void release_signals(const sigset_t *was) {}

static struct iw_ring ring = { .mask = 15 };
static int pair[2], calls;

// receive is the engine's end: what has come is a completion.
static int receive(uint32_t cq)
{
	char b;
	calls++;
	if (recv(pair[0], &b, 1, MSG_DONTWAIT) != 1)
		return 0;
	ring.wc[ring.tail & ring.mask] = (struct iw_wc){ .id = b };
	__atomic_store_n(&ring.tail, ring.tail + 1, __ATOMIC_RELEASE);
	return 1;
}

static int slept;
static void sleeps(uint32_t cq) { slept += cq; }

static struct iw_engine table = { .progress = receive, .sleeps = sleeps };
const struct iw_engine *engine_to_post(void) { return &table; }

static struct iw_cq q = { .ring = &ring, .handle = 1 };

static int poll_plain(uint64_t *id)
{
	struct ibv_wc w;
	int n = iw_poll_cq((struct ibv_cq *)&q, 1, &w);
	*id = w.wr_id;
	return n;
}

static int poll_extended(uint64_t *id)
{
	struct ibv_poll_cq_attr a = { 0 };
	if (q.cq.start_poll(&q.cq, &a))
		return 0;
	*id = q.cq.wr_id;
	q.cq.end_poll(&q.cq);
	return 1;
}

#define CHECK(x) do { if (!(x)) { printf("%s: %s, line %d\n", name, #x, __LINE__); return 1; } } while (0)

static int check(const char *name, int (*poll)(uint64_t *))
{
	uint64_t id;
	calls = 0;
	for (int i = 0; i < 10000; i++)
		CHECK(!poll(&id));
	CHECK(calls == 0); // nothing has come
	for (char b = 1; b <= 100; b++) {
		CHECK(write(pair[1], &b, 1) == 1);
		int polls = 1;
		while (!poll(&id))
			CHECK(++polls < 10);
		CHECK(id == b && calls == b); // one call for what has come
	}
	calls = 0;
	for (int i = 1; i <= 100; i++) { // the engine has brought it itself
		ring.wc[ring.tail & ring.mask] = (struct iw_wc){ .id = i };
		__atomic_store_n(&ring.tail, ring.tail + 1, __ATOMIC_RELEASE);
		CHECK(poll(&id) == 1 && id == i);
	}
	CHECK(calls == 0);
	int other = dup(1); // a descriptor that is another file's by now, or nobody's
	ring.sockets[1] = other + 1;
	ring.sockets[2] = 1000;
	errno = 77;
	for (int i = 0; i < 1000; i++)
		CHECK(!poll(&id));
	CHECK(errno == 77 && calls == 0);
	close(other);
	uint64_t spins = ring.spins;
	for (int i = 0; i < 100; i++)
		CHECK(!poll(&id));
	CHECK(ring.spins >= spins + 90); // the engine sees that it is polled in vain
	slept = 0;
	CHECK(!iw_req_notify_cq((struct ibv_cq *)&q, 0) && !slept);
	ring.quiet = 1;
	CHECK(!iw_req_notify_cq((struct ibv_cq *)&q, 0) && slept == 1 && ring.armed); // and that it is not any more
	ring.quiet = ring.armed = 0;
	ring.sockets[1] = ring.sockets[2] = 0;
	return 0;
}

int main(void)
{
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || !(ring.wc = calloc(16, sizeof *ring.wc)))
		return 2;
	ring.sockets[3] = pair[0] + 1;
	pthread_spin_init(&q.lock, PTHREAD_PROCESS_PRIVATE);
	pthread_spin_init(&q.arming, PTHREAD_PROCESS_PRIVATE);
	iw_extend_cq(&q);
	return check("ibv_poll_cq", poll_plain) || check("ibv_start_poll", poll_extended);
}
