// What programs do to an RDMA library besides RDMA: 64 threads that post to one queue pair, fork before and after its
// use, an exit in the middle of everything. It ends with "all is well", or at the first thing that is not.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)

enum { THREADS = 64, POSTS = 300, SIZE = 1 << 16 };

struct info { uint64_t addr; uint32_t key; } __attribute__((packed));

static struct ibv_qp_init_attr attr(void)
{
	return (struct ibv_qp_init_attr){ .cap = { .max_send_wr = 128, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 }, .qp_type = IBV_QPT_RC };
}

// serve takes one connection, opens memory to it, and waits for its end.
static void serve(int ready, int leave)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *ln, *id;
	CHECK(!rdma_create_id(NULL, &ln, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(ln, (struct sockaddr *)&at));
	CHECK(!rdma_listen(ln, 4));
	uint16_t port = rdma_get_src_port(ln);
	CHECK(write(ready, &port, sizeof port) == sizeof port);
	CHECK(!rdma_get_request(ln, &id));
	struct ibv_qp_init_attr a = attr();
	CHECK(!rdma_create_qp(id, NULL, &a));
	char *mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED);
	struct ibv_mr *mr = rdma_reg_write(id, mem, SIZE);
	CHECK(mr);
	struct info i = { (uintptr_t)mem, mr->rkey };
	struct rdma_conn_param c = { .private_data = &i, .private_data_len = sizeof i };
	CHECK(!rdma_accept(id, &c));
	while (leave && !*(volatile char *)mem) {} // until the peer is in the middle of it
	if (leave)
		_exit(0);
	struct rdma_event_channel *ch = rdma_create_event_channel();
	CHECK(ch && !rdma_migrate_id(id, ch));
	struct rdma_cm_event *ev;
	CHECK(!rdma_get_cm_event(ch, &ev) && ev->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_ack_cm_event(ev);
	CHECK(!rdma_dereg_mr(mr) && !munmap(mem, SIZE));
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_id(ln);
	rdma_destroy_event_channel(ch);
	exit(0);
}

// server is a child: a program may fork as long as it has not used the device.
static pid_t server(uint16_t *port, int leave)
{
	int p[2];
	CHECK(!pipe(p));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		serve(p[1], leave);
	CHECK(read(p[0], port, sizeof *port) == sizeof *port);
	close(p[0]);
	close(p[1]);
	return child;
}

static struct rdma_cm_id *dial(uint16_t port, struct info *i)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port };
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000) && !rdma_resolve_route(id, 5000));
	struct ibv_qp_init_attr a = attr();
	CHECK(!rdma_create_qp(id, NULL, &a));
	struct rdma_conn_param c = {};
	CHECK(!rdma_connect(id, &c));
	CHECK(id->event->param.conn.private_data_len >= sizeof *i);
	memcpy(i, id->event->param.conn.private_data, sizeof *i);
	return id;
}

static struct rdma_cm_id *shared;
static struct info far;

static void *poster(void *p)
{
	char b[64];
	memset(b, 1, sizeof b);
	for (int i = 0; i < POSTS;) {
		struct ibv_sge s = { (uintptr_t)b, sizeof b, 0 };
		struct ibv_send_wr wr = { .wr_id = (uintptr_t)p, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
			.wr.rdma = { far.addr + (uintptr_t)p * sizeof b, far.key } }, *bad;
		int err = ibv_post_send(shared->qp, &wr, &bad);
		if (!err)
			i++;
		else
			CHECK(err == ENOMEM);
	}
	return NULL;
}

int main(void)
{
	uint16_t port, port2;
	int status;
	setvbuf(stdout, NULL, _IOLBF, 0);
	pid_t a = server(&port, 0), b = server(&port2, 1);

	shared = dial(port, &far);
	pthread_t t[THREADS];
	unsigned count[THREADS] = {};
	for (long i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, poster, (void *)i));
	for (int n = 0; n < THREADS * POSTS;) {
		struct ibv_wc wc[16];
		int k = ibv_poll_cq(shared->send_cq, 16, wc);
		CHECK(k >= 0);
		for (int i = 0; i < k; i++) {
			CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < THREADS);
			count[wc[i].wr_id]++;
		}
		n += k;
	}
	for (int i = 0; i < THREADS; i++) {
		CHECK(!pthread_join(t[i], NULL));
		CHECK(count[i] == POSTS);
	}
	CHECK(!rdma_disconnect(shared));
	CHECK(waitpid(a, &status, 0) == a && !status);

	// A peer that exits in the middle: posts go on, and complete, until the stream is known to have ended.
	struct info far2;
	struct rdma_cm_id *id = dial(port2, &far2);
	char *mem = calloc(1, SIZE);
	memset(mem, 1, SIZE);
	struct ibv_mr *mr = rdma_reg_msgs(id, mem, SIZE);
	CHECK(mr);
	for (;;) {
		struct ibv_wc wc;
		CHECK(!rdma_post_write(id, NULL, mem, SIZE, mr, IBV_SEND_SIGNALED, far2.addr, far2.key));
		while (!ibv_poll_cq(id->send_cq, 1, &wc)) {}
		if (wc.status != IBV_WC_SUCCESS)
			break;
	}
	CHECK(waitpid(b, &status, 0) == b && !status);

	// After its use a child has no RDMA, and is told so; the parent's goes on.
	pid_t c = fork();
	CHECK(c >= 0);
	if (!c) {
		errno = 0;
		_exit(rdma_reg_msgs(id, mem, SIZE) == NULL && errno == EPERM ? 0 : 1);
	}
	CHECK(waitpid(c, &status, 0) == c && !status);
	struct ibv_mr *again = rdma_reg_msgs(id, mem, SIZE);
	CHECK(again && !rdma_dereg_mr(again) && !rdma_dereg_mr(mr));
	free(mem);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	printf("all is well\n");
	return 0; // with a connection that nobody has closed
}
