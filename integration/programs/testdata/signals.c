// Signals during everything: handlers that a program has set before its first use of the device and after it, also one
// for faults, are called, on threads of the program, and with the stack that they need; timers interrupt whatever goes on; a
// peer that is gone does no harm; what a program blocks waits for it. It ends with "all is well", or at the first thing that is not.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "ends.h"

static const int all[] = { SIGUSR1, SIGUSR2, SIGALRM, SIGPROF, SIGURG, SIGPIPE, SIGIO, SIGHUP, SIGTERM, SIGCHLD };
enum { ALL = sizeof all / sizeof *all };

static atomic_int calls[2][64], strange;
static __thread int own; // a thread of the program
static sigjmp_buf out;

// deep takes as much stack as printf does.
static __attribute__((noinline)) int deep(int n)
{
	volatile char b[1024];
	memset((void *)b, n, sizeof b);
	return n ? deep(n - 1) + b[n] : 0;
}

static void called(int which, int sig)
{
	int e = errno;
	calls[which][sig]++;
	if (!own && sig != SIGPROF && sig != SIGCHLD) // these the Go runtime unblocks in its threads
		strange++;
	deep(10);
	errno = e;
}
static void first(int sig) { called(0, sig); }
static void second(int sig) { called(1, sig); }
static void fault(int sig)
{
	calls[0][sig]++;
	siglongjmp(out, 1);
}
static void fault2(int sig)
{
	calls[1][sig]++;
	siglongjmp(out, 1);
}

static void set(int sig, void (*f)(int))
{
	struct sigaction a = { .sa_handler = f };
	CHECK(!sigaction(sig, &a, NULL));
}

static void raised(int which)
{
	for (int i = 0; i < ALL; i++) {
		int before = calls[which][all[i]];
		raise(all[i]);
		if (calls[which][all[i]] != before + 1) {
			printf("handlers %d: %d calls for %s\n", which, calls[which][all[i]] - before, strsignal(all[i]));
			exit(1);
		}
		before = calls[which][all[i]];
		kill(getpid(), all[i]);
		while (calls[which][all[i]] == before) {}
	}
	int before = calls[which][SIGSEGV];
	if (!sigsetjmp(out, 1)) {
		*(volatile int *)8 = 1;
		CHECK(0);
	}
	CHECK(calls[which][SIGSEGV] == before + 1);
}

static atomic_int over;

static void *pest(void *p)
{
	sigset_t none;
	own = 1;
	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, &none, NULL);
	while (!over) {
		pthread_kill(*(pthread_t *)p, SIGUSR1);
		usleep(50);
	}
	return NULL;
}

static void storm(struct rdma_event_channel *ln, struct sockaddr_in *at, struct end *a, struct end *b)
{
	struct itimerval real = { { 0, 100 }, { 0, 100 } }, prof = { { 0, 1000 }, { 0, 1000 } }, none = {};
	pthread_t me = pthread_self(), t;
	int urg = calls[1][SIGURG];
	sigset_t every, was;
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &was);
	CHECK(!pthread_create(&t, NULL, pest, &me));
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	CHECK(!setitimer(ITIMER_REAL, &real, NULL) && !setitimer(ITIMER_PROF, &prof, NULL));
	for (int i = 0; i < 4000; i++)
		exchange(a, b, i, 1 + i * 7 % 20000, i % 2);
	for (int i = 0; i < 100; i++) {
		struct end c, d;
		connect_ends(ln, at, &c, &d);
		exchange(&c, &d, i, 5000, i % 2);
		disconnect_ends(ln, &c, &d);
	}
	CHECK(!setitimer(ITIMER_REAL, &none, NULL) && !setitimer(ITIMER_PROF, &none, NULL));
	over = 1;
	CHECK(!pthread_join(t, NULL));
	CHECK(calls[1][SIGALRM] > 100 && calls[1][SIGUSR1] > 100 && calls[1][SIGPROF] > 10);
	if (strange || calls[1][SIGURG] != urg) {
		printf("%d signals on threads that are not the program's, %d SIGURG\n", strange, calls[1][SIGURG] - urg);
		exit(1);
	}
}

// gone: the peer, a child, is killed while this end writes, with SIGPIPE as it is by default.
static void gone(uint16_t port, pid_t child)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port };
	struct end e = {};
	struct rdma_conn_param c = {};
	CHECK(e.ch = rdma_create_event_channel());
	CHECK(!rdma_create_id(e.ch, &e.id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(e.id, NULL, (struct sockaddr *)&to, 5000));
	event(e.ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(e.id, 5000));
	event(e.ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	objects(&e);
	CHECK(!rdma_connect(e.id, &c));
	event(e.ch, RDMA_CM_EVENT_ESTABLISHED);
	int status, n = 0;
	for (;; n++) {
		post(&e, IBV_WR_RDMA_WRITE, n, 0, 0, 0, 0);
		post(&e, IBV_WR_SEND, n, 0, 0, 0, 0);
		if (n == 4)
			CHECK(!kill(child, SIGKILL));
		struct ibv_wc wc = next(&e, 0);
		if (wc.status == IBV_WC_SUCCESS)
			wc = next(&e, 0);
		if (wc.status != IBV_WC_SUCCESS)
			break;
	}
	CHECK(waitpid(child, &status, 0) == child);
	destroy(&e);
}

static pid_t victim(uint16_t *port)
{
	int p[2];
	CHECK(!pipe(p));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		CHECK(read(p[0], port, sizeof *port) == sizeof *port);
		return child;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	struct end e = {};
	struct rdma_conn_param c = {};
	listening(&ch, &at, 4);
	CHECK(write(p[1], &at.sin_port, sizeof at.sin_port) == sizeof at.sin_port);
	e.id = event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	objects(&e);
	for (int i = 0; i < 16; i++)
		receive(&e, i, 0, 64);
	CHECK(!rdma_accept(e.id, &c));
	for (;;)
		pause();
}

// waited: a signal that all threads of the program block is taken by sigtimedwait, and by nobody else.
static void waited(void)
{
	sigset_t s;
	struct timespec t = { 10, 0 };
	sigemptyset(&s);
	sigaddset(&s, SIGTERM);
	sigaddset(&s, SIGUSR2);
	for (int i = 0; i < ALL; i++)
		signal(all[i], SIG_DFL);
	CHECK(!pthread_sigmask(SIG_BLOCK, &s, NULL));
	for (int i = 0; i < 100; i++) {
		CHECK(!kill(getpid(), SIGTERM) && !kill(getpid(), SIGUSR2));
		CHECK(sigtimedwait(&s, NULL, &t) > 0 && sigtimedwait(&s, NULL, &t) > 0);
	}
}

int main(void)
{
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	struct end a, b;
	uint16_t port;
	sigset_t before, after;
	own = 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	pid_t child = victim(&port);
	for (int i = 0; i < ALL; i++)
		set(all[i], first);
	set(SIGSEGV, fault);
	raised(0);
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &before));
	struct rdma_cm_id *ln = listening(&ch, &at, 16);
	connect_ends(ch, &at, &a, &b);
	exchange(&a, &b, 1, 1000, 1);
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &after) && !memcmp(&before, &after, sizeof before));
	raised(0);
	exchange(&a, &b, 2, 1000, 1);
	for (int i = 0; i < ALL; i++)
		if (i % 2)
			set(all[i], second);
		else
			CHECK(signal(all[i], second) == first);
	set(SIGSEGV, fault2);
	raised(1);
	storm(ch, &at, &a, &b);
	raised(1);
	signal(SIGPIPE, SIG_DFL);
	gone(port, child);
	waited();
	exchange(&a, &b, 3, 1000, 1);
	disconnect_ends(ch, &a, &b);
	rdma_destroy_id(ln);
	rdma_destroy_event_channel(ch);
	printf("all is well\n");
	return 0;
}
