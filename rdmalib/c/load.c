// The engine: loaded late, and once.
#include "lib.h"
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

// Layouts are also those of Go: package rdmalib tests the same numbers.
_Static_assert(sizeof(struct iw_wc) == 56 && sizeof(struct iw_sge) == 16 && sizeof(struct iw_send) == 80 && sizeof(struct iw_qp_config) == 32, "");
_Static_assert(sizeof(struct iw_ring) == 256 && offsetof(struct iw_ring, head) == 64 && offsetof(struct iw_ring, armed) == 128 && offsetof(struct iw_ring, mask) == 160, "");

static struct iw_engine table;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int failed = ENODEV;
static pid_t owner;
static const char *own; // 1 in the process that has loaded the engine, and 0 in its children; NULL where the kernel can't do that

// mark_own makes the page of own.
static void mark_own(void)
{
	size_t n = sysconf(_SC_PAGESIZE);
	char *page = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return;
	if (madvise(page, n, MADV_WIPEONFORK)) {
		munmap(page, n);
		return;
	}
	*page = 1;
	own = page;
}

// is_child is asked at each post and poll, so that it makes no system call.
static int is_child(void) { return own ? !*own : owner != getpid(); }

int started_by_run(void)
{
	if (getenv("IRONWARP_LAB") || getenv("IRONWARP_SOCKET"))
		return 1;
	static int said;
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "ironwarp: this program was not started by `ironwarp run`, which says what its RDMA may reach\n");
	errno = EACCES;
	return 0;
}

static void load(void)
{
	if (!started_by_run()) {
		failed = errno;
		return;
	}
	static const char name[] = "libironwarp-rnic.so";
	Dl_info self;
	char path[PATH_MAX];
	const char *slash;
	if (!dladdr((void *)load, &self) || !(slash = strrchr(self.dli_fname, '/')) ||
	    snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name) >= (int)sizeof path)
		strcpy(path, name);
	void *lib = load_quietly(path);
	if (!lib) {
		fprintf(stderr, "ironwarp: %s\n", dlerror());
		return;
	}
#define FUNCTION(f) \
	if (!(*(void **)&table.f = dlsym(lib, "iwgo_" #f))) { \
		fprintf(stderr, "ironwarp: %s has no iwgo_" #f ": it is of another version\n", path); \
		return; \
	}
	FUNCTION(start) FUNCTION(alloc_pd) FUNCTION(dealloc_pd) FUNCTION(reg_mr) FUNCTION(dereg_mr) FUNCTION(alloc_mw) FUNCTION(dealloc_mw)
	FUNCTION(create_cq) FUNCTION(resize_cq) FUNCTION(destroy_cq) FUNCTION(progress) FUNCTION(sleeps) FUNCTION(create_srq) FUNCTION(arm_srq) FUNCTION(destroy_srq)
	FUNCTION(post_srq_recv) FUNCTION(create_qp) FUNCTION(destroy_qp) FUNCTION(fail_qp) FUNCTION(qp_state) FUNCTION(post_send)
	FUNCTION(post_recv) FUNCTION(cm_open) FUNCTION(cm_close) FUNCTION(cm_command) FUNCTION(cm_event)
#undef FUNCTION
	owner = getpid();
	mark_own();
	failed = table.start(async_event);
}

const struct iw_engine *engine(void)
{
	const struct iw_engine *e = engine_to_post();
	if (e && late)
		give_stacks();
	return e;
}

const struct iw_engine *engine_to_post(void)
{
	pthread_once(&once, load);
	if (failed) {
		errno = failed;
		return NULL;
	}
	if (is_child()) {
		static int said;
		if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
			fprintf(stderr, "ironwarp: process %d uses RDMA that its parent, %d, has begun to use: it has to fork before that\n", getpid(), owner);
		errno = EPERM;
		return NULL;
	}
	return &table;
}
