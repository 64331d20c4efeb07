// Memory regions, with guard bytes around them.
#include "agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct region *find_region(struct agent *a, const char *word)
{
	int i = atoi(word);
	return i >= 0 && i < MAX_REGIONS && a->regions[i].memory ? &a->regions[i] : NULL;
}

// reg SIZE GUARD RIGHTS PD: RIGHTS of the letters l (local write), r and w
// (remote read and write), or -; PD 0 is that of the streams.
void do_reg(struct agent *a, int n, char **w)
{
	struct region *r = a->regions, *end = r + MAX_REGIONS;
	while (r < end && r->memory)
		r++;
	if (n != 5 || r == end)
		return no("reg SIZE GUARD RIGHTS PD", 0);
	r->size = strtoul(w[1], NULL, 0);
	r->guard = strtoul(w[2], NULL, 0);
	int access = 0;
	for (const char *p = w[3]; *p; p++)
		access |= *p == 'l'   ? IBV_ACCESS_LOCAL_WRITE
			  : *p == 'r' ? IBV_ACCESS_REMOTE_READ
			  : *p == 'w' ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE
				      : 0;
	r->memory = calloc(1, r->size + 2 * r->guard);
	if (!r->memory)
		return no("calloc", errno);
	r->mr = ibv_reg_mr(a->pds[atoi(w[4]) & 1], r->memory + r->guard, r->size, access);
	if (!r->mr) {
		int error = errno;
		free(r->memory);
		r->memory = NULL;
		return no("ibv_reg_mr", error);
	}
	ok("%td %u %llu", r - a->regions, r->mr->rkey, (unsigned long long)(uintptr_t)(r->memory + r->guard));
}

// dereg REGION: the memory stays.
void do_dereg(struct agent *a, int n, char **w)
{
	struct region *r = n == 2 ? find_region(a, w[1]) : NULL;
	if (!r)
		return no("dereg REGION", 0);
	int error = r->mr ? ibv_dereg_mr(r->mr) : 0;
	if (error)
		return no("ibv_dereg_mr", error);
	r->mr = NULL;
	done();
}

// forget REGION
void do_forget(struct agent *a, int n, char **w)
{
	struct region *r = n == 2 ? find_region(a, w[1]) : NULL;
	if (!r)
		return no("forget REGION", 0);
	int error = r->mr ? ibv_dereg_mr(r->mr) : 0;
	if (error)
		return no("ibv_dereg_mr", error);
	free(r->memory);
	memset(r, 0, sizeof *r);
	done();
}

// at is where offset off of a region is, if it has n bytes there.
static char *at(struct region *r, long off, size_t n)
{
	long from = off + (long)r->guard;
	if (from < 0 || (size_t)from + n > r->size + 2 * r->guard)
		return NULL;
	return r->memory + from;
}

// store REGION OFFSET BYTES, and the bytes after the line.
void do_store(struct agent *a, int n, char **w)
{
	struct region *r = n == 4 ? find_region(a, w[1]) : NULL;
	size_t bytes = n == 4 ? strtoul(w[3], NULL, 0) : 0;
	char *p = r ? at(r, atol(w[2]), bytes) : NULL;
	if (!p || !take_input(p, bytes))
		return no("store REGION OFFSET BYTES", 0);
	done();
}

// load REGION OFFSET BYTES; the bytes come after the reply.
void do_load(struct agent *a, int n, char **w)
{
	struct region *r = n == 4 ? find_region(a, w[1]) : NULL;
	size_t bytes = n == 4 ? strtoul(w[3], NULL, 0) : 0;
	char *p = r ? at(r, atol(w[2]), bytes) : NULL;
	if (!p)
		return no("load REGION OFFSET BYTES", 0);
	ok("%zu", bytes);
	fwrite(p, 1, bytes, stdout);
}
