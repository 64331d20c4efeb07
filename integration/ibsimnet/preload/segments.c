// Behind libumad2sim in LD_PRELOAD, for programs with libibumad. It does two things that libumad2sim 0.10 to 0.12 do not:
//
// It passes on whole MADs. libumad2sim drops the last 32 of a MAD's 256 bytes, as its buffer has no room for libibumad's header. Here
// read, by which libumad2sim receives, keeps each MAD, and umad_recv restores it.
//
// It puts together the segments of an answer of the SA, as the kernel does for a real device, and hands the program one long MAD. The
// segments come in order and need no acknowledgement (server.go).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int umad_size(void); // of what precedes a MAD: struct ib_user_mad, whose first 4 bytes are the agent's number
void *umad_get_mad(void *umad);

enum {
	most_umad_size = 128,
	packet_len = 288, // of ibsim's packets; the MAD is at their end
	mad_len = 256,
	head_len = 64, // what tells apart MADs: header, RMPP, key
	sa_head = 56, // before an SA MAD's data
	sa_class = 3,
	rmpp_head = 36, // what PayloadLength does not count
	flags_at = 26,
	active = 1, last = 4,
	limit = 64 << 20,
};

// A MAD as it came, in order.
struct kept {
	struct kept *next;
	unsigned char mad[mad_len];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct kept *oldest, **end = &oldest; // under the mutex

static void *next_of(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);
	if (!f)
		abort();
	return f;
}

ssize_t read(int fd, void *buf, size_t count)
{
	static ssize_t (*real)(int, void *, size_t);
	if (!real)
		real = (ssize_t (*)(int, void *, size_t))next_of("read");
	ssize_t n = real(fd, buf, count);
	struct kept *k;
	if (n == packet_len && (k = malloc(sizeof(*k)))) {
		memcpy(k->mad, (unsigned char *)buf + packet_len - mad_len, mad_len);
		k->next = NULL;
		pthread_mutex_lock(&mutex);
		*end = k;
		end = &k->next;
		pthread_mutex_unlock(&mutex);
	}
	return n;
}

// restore replaces a MAD by what came, and forgets that.
static void restore(unsigned char *mad)
{
	pthread_mutex_lock(&mutex);
	for (struct kept **at = &oldest; *at; at = &(*at)->next) {
		struct kept *k = *at;
		if (memcmp(k->mad, mad, head_len))
			continue;
		memcpy(mad, k->mad, mad_len);
		*at = k->next;
		if (end == &k->next)
			end = at;
		free(k);
		break;
	}
	pthread_mutex_unlock(&mutex);
}

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
	if (!real)
		real = (int (*)(int, void *, int *, int))next_of("umad_recv");
	while (!complete) {
		unsigned char segment[most_umad_size + mad_len];
		int n = mad_len;
		int agent = real(fd, segment, &n, timeout_ms);
		unsigned char *mad = umad_get_mad(segment);
		if (agent < 0)
			return agent;
		restore(mad);
		if (n < sa_head || mad[1] != sa_class || !(mad[flags_at] & active)) {
			if (*length < n)
				n = *length;
			*length = n;
			memcpy(umad, segment, umad_size() + n);
			return agent;
		}
		int from = whole ? sa_head : 0;
		if (mad[flags_at] & last) {
			uint32_t stop = number(mad + 32) + rmpp_head;
			if (stop < (uint32_t)n)
				n = stop;
			complete = 1;
		}
		if (n < from || whole_len + n > limit || !(whole = realloc(whole, umad_size() + whole_len + n))) {
			errno = EIO;
			return -EIO;
		}
		if (!from)
			memcpy(whole, segment, umad_size());
		memcpy(whole + umad_size() + whole_len, mad + from, n - from);
		whole_len += n - from;
	}
	return give(umad, length);
}
