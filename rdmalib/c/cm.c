// /dev/infiniband/rdma_cm for the distribution's librdmacm: its calls of open, fstat, write, read and close are
// redirected here, those of that library alone. The file is an eventfd, so that programs can wait for events.
#include "lib.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <rdma/rdma_user_cm.h>

enum { MAX_FD = 1 << 16 };

// What a file is: not ours, ours, or ours and known to the engine.
static char files[MAX_FD];
enum { OTHER, OPEN, KNOWN };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int ours(int fd) { return fd >= 0 && fd < MAX_FD && __atomic_load_n(&files[fd], __ATOMIC_ACQUIRE) != OTHER; }

static int cm_open(const char *path, int flags, ...)
{
	if (!strcmp(path, "/dev/infiniband/rdma_cm")) {
		int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		if (fd >= MAX_FD) {
			close(fd);
			errno = EMFILE;
			return -1;
		}
		if (fd >= 0)
			__atomic_store_n(&files[fd], OPEN, __ATOMIC_RELEASE);
		return fd;
	}
	va_list ap;
	va_start(ap, flags);
	int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
	va_end(ap);
	return open(path, flags, mode);
}

// cm_fstat: where the kernel has an rdma_cm of its own, librdmacm has heard the number of that from it, and opens no other.
static int cm_fstat(int fd, struct stat *s)
{
	int rc = fstat(fd, s);
	if (rc || !ours(fd))
		return rc;
	s->st_mode = S_IFCHR | 0600;
	FILE *f = fopen("/sys/class/misc/rdma_cm/dev", "re");
	if (f) {
		unsigned major, minor;
		if (fscanf(f, "%u:%u", &major, &minor) == 2)
			s->st_rdev = makedev(major, minor);
		fclose(f);
	}
	return 0;
}

// known tells the engine of a file at its first command: until then a program may fork.
static const struct iw_engine *known(int fd)
{
	const struct iw_engine *e = engine();
	if (!e)
		return NULL;
	pthread_mutex_lock(&lock);
	if (files[fd] == OPEN) {
		e->cm_open(fd);
		__atomic_store_n(&files[fd], KNOWN, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

static ssize_t cm_write(int fd, const void *buf, size_t n)
{
	if (!ours(fd))
		return write(fd, buf, n);
	const struct iw_engine *e = known(fd);
	if (!e)
		return -1;
	const struct rdma_ucm_cmd_hdr *h = buf;
	if (n < sizeof *h || n > 1 << 16) {
		errno = EINVAL;
		return -1;
	}
	if (h->cmd != RDMA_USER_CM_CMD_GET_EVENT) {
		errno = e->cm_command(fd, (void *)buf, n);
		return errno ? -1 : (ssize_t)n;
	}
	for (;;) {
		errno = e->cm_event(fd, (void *)buf, n);
		if (!errno)
			return n;
		if (errno != EAGAIN)
			return -1;
		int flags = fcntl(fd, F_GETFL);
		if (flags < 0)
			return -1;
		if (flags & O_NONBLOCK) {
			errno = EAGAIN;
			return -1;
		}
		struct pollfd p = { fd, POLLIN };
		sigset_t mask; // the runtime of Go sends itself SIGURG, which is none of the program's signals
		pthread_sigmask(SIG_BLOCK, NULL, &mask);
		sigaddset(&mask, SIGURG);
		if (ppoll(&p, 1, NULL, &mask) < 0)
			return -1;
	}
}

static int cm_close(int fd)
{
	if (ours(fd)) {
		pthread_mutex_lock(&lock);
		int was = files[fd];
		__atomic_store_n(&files[fd], OTHER, __ATOMIC_RELEASE);
		pthread_mutex_unlock(&lock);
		const struct iw_engine *e = was == KNOWN ? engine() : NULL;
		if (e)
			e->cm_close(fd);
	}
	return close(fd);
}

static const struct { const char *name; void *to; } redirected[] = {
	{ "open", cm_open }, { "open64", cm_open }, { "fstat", cm_fstat }, { "fstat64", cm_fstat }, { "write", cm_write }, { "close", cm_close },
};

// read_only is the part of a library that the loader has made read-only: whole pages. Where a library is bound as it goes,
// its global offset table is not in it.
struct read_only { uintptr_t from, to; };

static struct read_only read_only_of(const struct link_map *m, const char *base)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);
	const ElfW(Ehdr) *e = (const void *)base;
	const ElfW(Phdr) *p = (const void *)(base + e->e_phoff);
	for (int i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_GNU_RELRO)
			return (struct read_only){ (m->l_addr + p[i].p_vaddr) & ~(page - 1), (m->l_addr + p[i].p_vaddr + p[i].p_memsz) & ~(page - 1) };
	return (struct read_only){ 0, 0 };
}

// patch changes a slot of a library's global offset table, which may be read-only by now, and is so again then.
static int patch(void **slot, void *to, struct read_only r)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
	int locked = at >= r.from && at < r.to;
	if (*slot == to)
		return 0;
	if (locked && mprotect((void *)at, page, PROT_READ | PROT_WRITE))
		return -1;
	*slot = to;
	if (locked)
		mprotect((void *)at, page, PROT_READ);
	return 0;
}

// relocate goes through the relocations of a library for the functions above.
static void relocate(const struct link_map *m, const ElfW(Rela) *r, size_t bytes, const ElfW(Sym) *symbols, const char *strings, struct read_only locked)
{
	for (size_t i = 0; i < bytes / sizeof *r; i++) {
		const char *name = strings + symbols[ELF64_R_SYM(r[i].r_info)].st_name;
		if (!ELF64_R_SYM(r[i].r_info))
			continue;
		for (size_t k = 0; k < sizeof redirected / sizeof *redirected; k++)
			if (!strcmp(name, redirected[k].name) && patch((void **)(m->l_addr + r[i].r_offset), redirected[k].to, locked))
				fprintf(stderr, "ironwarp: %s of %s can't be redirected: %s\n", name, m->l_name, strerror(errno));
	}
}

void redirect(void *caller)
{
	Dl_info info;
	struct link_map *m = NULL;
	if (!dladdr1(caller, &info, (void **)&m, RTLD_DL_LINKMAP) || !m)
		return;
	const char *base = strrchr(m->l_name, '/');
	if (strncmp(base ? base + 1 : m->l_name, "librdmacm.so", 12))
		return;
	const ElfW(Sym) *symbols = NULL;
	const char *strings = NULL;
	const ElfW(Rela) *plt = NULL, *rela = NULL;
	size_t plt_bytes = 0, rela_bytes = 0;
	for (const ElfW(Dyn) *d = m->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB: symbols = (const void *)d->d_un.d_ptr; break;
		case DT_STRTAB: strings = (const void *)d->d_un.d_ptr; break;
		case DT_JMPREL: plt = (const void *)d->d_un.d_ptr; break;
		case DT_PLTRELSZ: plt_bytes = d->d_un.d_val; break;
		case DT_RELA: rela = (const void *)d->d_un.d_ptr; break;
		case DT_RELASZ: rela_bytes = d->d_un.d_val; break;
		}
	}
	if (!symbols || !strings)
		return;
	struct read_only locked = read_only_of(m, info.dli_fbase);
	relocate(m, plt, plt_bytes, symbols, strings, locked);
	relocate(m, rela, rela_bytes, symbols, strings, locked);
}
