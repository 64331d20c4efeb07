// Ends of programs in the middle of everything: by exit in another thread than the one that moves data, by exit in a
// signal's handler, by main's return, by the last thread's end; with handlers of atexit that give back what the device was
// used for, registered before its first use and after it. It ends with "all is well", or at the first thing that is not.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "ends.h"

static struct end a, b;
static struct ibv_context *second;
static struct ibv_pd *pd;
static int moved; // guarded by lock
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

static void *move(void *p)
{
	for (unsigned i = 0;; i++) {
		exchange(&a, &b, i, 1 + i * 7 % 20000, i % 2);
		pthread_mutex_lock(&lock);
		moved++;
		pthread_cond_broadcast(&more);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void *wait_event(void *ch)
{
	struct rdma_cm_event *e;
	rdma_get_cm_event(ch, &e);
	return NULL;
}

static void *wait_async(void *c)
{
	struct ibv_async_event e;
	ibv_get_async_event(c, &e);
	return NULL;
}

static void wait_moved(int n)
{
	pthread_mutex_lock(&lock);
	while (moved < n)
		pthread_cond_wait(&more, &lock);
	pthread_mutex_unlock(&lock);
}

static void give_back(void)
{
	if (!second)
		return;
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(second));
	second = NULL;
}

static void *leave(void *p)
{
	wait_moved(20);
	exit(0);
}

static void on_alarm(int sig) { exit(0); }

static int child(int how)
{
	struct rdma_event_channel *ch;
	struct sockaddr_in at;
	pthread_t t, t2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (how & 1)
		CHECK(!atexit(give_back));
	listening(&ch, &at, 4);
	connect_ends(ch, &at, &a, &b);
	CHECK(second = ibv_open_device(a.id->verbs->device));
	CHECK(pd = ibv_alloc_pd(second));
	if (!(how & 1))
		CHECK(!atexit(give_back));
	CHECK(!pthread_create(&t, NULL, wait_event, ch) && !pthread_create(&t, NULL, wait_async, second));
	CHECK(!pthread_create(&t2, NULL, move, NULL));
	switch (how / 2) {
	case 0:
		CHECK(!pthread_create(&t, NULL, leave, NULL));
		for (;;)
			pause();
	case 1:
		wait_moved(20);
		return 0;
	case 2:
		signal(SIGUSR1, on_alarm);
		wait_moved(20);
		raise(SIGUSR1);
		break;
	case 3:
		CHECK(!pthread_create(&t, NULL, leave, NULL));
		pthread_exit(NULL);
	case 4:
		wait_moved(20);
		_exit(0);
	}
	return 1;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 60; i++) {
		int how = i % 10, status;
		pid_t p = fork();
		CHECK(p >= 0);
		if (!p) {
			alarm(30);
			return child(how);
		}
		CHECK(waitpid(p, &status, 0) == p);
		if (status) {
			printf("way %d to end: status %#x\n", how, status);
			return 1;
		}
	}
	printf("all is well\n");
	return 0;
}
