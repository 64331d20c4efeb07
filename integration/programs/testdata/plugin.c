// A program that knows nothing of RDMA, and plugins that do, which are loaded, used and unloaded again and again, with their
// libraries. Built with -DPLUGIN it is one that moves data, with -DBARE one that links libibverbs alone; the program's
// arguments are their paths. It ends with "all is well", or at the first thing that is not.
#include "ends.h"
#ifdef BARE
void use(int i)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = ibv_open_device(list[0]);
	struct ibv_pd *pd;
	CHECK(c && (pd = ibv_alloc_pd(c)) && !ibv_dealloc_pd(pd) && !ibv_close_device(c));
	ibv_free_device_list(list);
}
#elif defined PLUGIN
void use(int i)
{
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	struct end a, b;
	struct rdma_cm_id *ln = listening(&ch, &at, 4);
	connect_ends(ch, &at, &a, &b);
	for (int k = 0; k < 20; k++)
		exchange(&a, &b, i + k, 1 + k * 1000, k % 2);
	disconnect_ends(ch, &a, &b);
	rdma_destroy_id(ln);
	rdma_destroy_event_channel(ch);
}
#else
#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>

static volatile int alarms;
static __attribute__((noinline)) int deep(int n)
{
	volatile char b[1024];
	memset((void *)b, n, sizeof b);
	return n ? deep(n - 1) + b[n] : 0;
}
static void on_alarm(int sig)
{
	alarms++;
	deep(10);
}

int main(int argc, char **argv)
{
	struct itimerval every = { { 0, 100 }, { 0, 100 } };
	struct sigaction s = { .sa_handler = on_alarm };
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 60; i++) {
		void *lib = dlopen(argv[i < 3 ? 2 : 1], RTLD_NOW | RTLD_LOCAL);
		if (!lib) {
			printf("%s\n", dlerror());
			return 1;
		}
		void (*use)(int);
		CHECK(*(void **)&use = dlsym(lib, "use"));
		use(i);
		CHECK(!dlclose(lib));
		CHECK(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD)); // the engine calls it: it stays
		if (i == 20) // from here on with signals, for whose handler the libraries are loaded too late to see it set
			CHECK(!sigaction(SIGALRM, &s, NULL) && !setitimer(ITIMER_REAL, &every, NULL));
	}
	CHECK(alarms > 10);
	printf("all is well\n");
	return 0;
}
#endif
