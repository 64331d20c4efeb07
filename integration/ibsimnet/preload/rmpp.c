// In front of libumad2sim (LD_PRELOAD): umad_recv puts together the segments of an answer of the SA, as the kernel does for a real
// device, and hands the program one long MAD. The segments come in order and need no acknowledgement (server.go).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int umad_size(void);              // of what precedes a MAD: struct ib_user_mad, whose first 4 bytes are the agent's number
void *umad_get_mad(void *umad);

enum {
	most_umad_size = 128,
	mad_len = 256,
	sa_head = 56, // before an SA MAD's data
	sa_class = 3,
	rmpp_head = 36, // what PayloadLength does not count
	flags_at = 26,
	active = 1, last = 4,
	limit = 64 << 20,
};

static unsigned char *whole; // what precedes the MAD, and the MAD so far
static int whole_len;        // of the MAD
static int complete;

// give hands the whole MAD to the program, if that has the room, as umad_recv says it.
static int give(void *umad, int *length)
{
	if (*length < whole_len) {
		*length = whole_len;
		errno = ENOSPC;
		return -ENOSPC;
	}
	*length = whole_len;
	memcpy(umad, whole, umad_size() + whole_len);
	uint32_t agent;
	memcpy(&agent, whole, sizeof(agent));
	free(whole);
	whole = NULL;
	whole_len = complete = 0;
	return (int)agent;
}

static uint32_t number(const unsigned char *b) { return (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3]; }

int umad_recv(int fd, void *umad, int *length, int timeout_ms)
{
	static int (*real)(int, void *, int *, int);
	if (!real && !(real = (int (*)(int, void *, int *, int))dlsym(RTLD_NEXT, "umad_recv"))) {
		errno = ENOSYS;
		return -ENOSYS;
	}
	while (!complete) {
		unsigned char segment[most_umad_size + mad_len];
		int n = mad_len;
		int agent = real(fd, segment, &n, timeout_ms);
		unsigned char *mad = umad_get_mad(segment);
		if (agent < 0)
			return agent;
		if (n < sa_head || mad[1] != sa_class || !(mad[flags_at] & active)) {
			if (*length < n)
				n = *length;
			*length = n;
			memcpy(umad, segment, umad_size() + n);
			return agent;
		}
		int from = whole ? sa_head : 0;
		if (mad[flags_at] & last) {
			uint32_t end = number(mad + 32) + rmpp_head;
			if (end < (uint32_t)n)
				n = end;
			complete = 1;
		}
		if (n < from || whole_len + n > limit) {
			errno = EIO;
			return -EIO;
		}
		whole = realloc(whole, umad_size() + whole_len + n);
		if (!from)
			memcpy(whole, segment, umad_size());
		memcpy(whole + umad_size() + whole_len, mad + from, n - from);
		whole_len += n - from;
	}
	return give(umad, length);
}
