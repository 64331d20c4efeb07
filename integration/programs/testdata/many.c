// 1,000 connections at once in one program, 2,000 queue pairs, each of which moves data of its own in both directions while
// the others do. It ends with "all is well", or at the first thing that is not.
#include <sys/resource.h>
#include "ends.h"

enum { MANY = 1000, N = 3000 };

static struct end a[MANY], b[MANY];

// begin has one end send and write to the other, which has posted a receive.
static void begin(struct end *from, struct end *to, unsigned seed)
{
	for (unsigned k = 0; k < N; k++)
		from->mem[k] = seed * 31 + k;
	receive(to, 1, 10000, N);
	post(from, IBV_WR_RDMA_WRITE, 2, 0, N, (uintptr_t)to->mem + 20000, to->mr->rkey);
	post(from, IBV_WR_SEND, 3, 0, N, 0, 0);
}

static void end(struct end *e, struct end *from)
{
	for (int seen = 0; seen != 14;) {
		struct ibv_wc wc = next(e, 0);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id >= 1 && wc.wr_id <= 3 && !(seen & 1 << wc.wr_id) && wc.qp_num == e->id->qp->qp_num);
		seen |= 1 << wc.wr_id;
	}
	CHECK(!memcmp(e->mem + 10000, from->mem, N) && !memcmp(e->mem + 20000, from->mem, N));
}

int main(void)
{
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	struct rlimit r;
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	r.rlim_cur = r.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
	struct rdma_cm_id *ln = listening(&ch, &at, 16);
	for (int i = 0; i < MANY; i++)
		connect_ends(ch, &at, &a[i], &b[i]);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < MANY; i++) {
			begin(&a[i], &b[i], round + i);
			begin(&b[i], &a[i], round - i);
		}
		for (int i = 0; i < MANY; i++) {
			end(&a[i], &b[i]);
			end(&b[i], &a[i]);
		}
	}
	for (int i = 0; i < MANY; i++)
		disconnect_ends(ch, &a[i], &b[i]);
	rdma_destroy_id(ln);
	rdma_destroy_event_channel(ch);
	printf("all is well\n");
	return 0;
}
