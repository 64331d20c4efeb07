#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ok(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("ok ", stdout);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
}

void done(void) { puts("ok"); }

void no(const char *what, int error)
{
	printf("no %s%s%s\n", what, error ? ": " : "", error ? strerror(error) : "");
}

static const struct {
	const char *name;
	void (*run)(struct agent *, int, char **);
} commands[] = {
	{"listen", do_listen}, {"accept", do_accept}, {"connect", do_connect}, {"close", do_close}, {"abort", do_abort}, {"free", do_free},
	{"reg", do_reg},       {"dereg", do_dereg},   {"store", do_store},     {"load", do_load},   {"recv", do_recv},	 {"send", do_send},
	{"forget", do_forget},
};

static void carry_out(struct agent *a, char *line)
{
	char *words[MAX_WORDS], *rest = NULL;
	int n = 0;
	for (char *w = strtok_r(line, " ", &rest); w && n < MAX_WORDS; w = strtok_r(NULL, " ", &rest))
		words[n++] = w;
	for (size_t i = 0; n && i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(words[0], commands[i].name))
			return commands[i].run(a, n, words);
	no("there is no such command", 0);
}

static char input[MAX_LINE];
static size_t input_from, input_to;

bool take_input(char *p, size_t n)
{
	while (n) {
		size_t have = input_to - input_from;
		if (have) {
			have = have < n ? have : n;
			memcpy(p, input + input_from, have);
			input_from += have;
		} else {
			ssize_t got = read(STDIN_FILENO, p, n);
			if (got <= 0)
				return false;
			have = (size_t)got;
		}
		p += have;
		n -= have;
	}
	return true;
}

// read_lines carries out what has come; false: the input has ended.
static bool read_lines(struct agent *a)
{
	memmove(input, input + input_from, input_to - input_from);
	input_to -= input_from;
	input_from = 0;
	ssize_t got = read(STDIN_FILENO, input + input_to, sizeof input - input_to);
	if (got <= 0)
		return false;
	input_to += (size_t)got;
	char *end;
	while ((end = memchr(input + input_from, '\n', input_to - input_from))) {
		char *line = input + input_from;
		*end = 0;
		input_from += (size_t)(end - line) + 1;
		carry_out(a, line);
	}
	return true;
}

static void take_async_event(struct agent *a)
{
	struct ibv_async_event e;
	if (ibv_get_async_event(a->device, &e))
		return;
	printf("+async %s\n", ibv_event_type_str(e.event_type));
	ibv_ack_async_event(&e);
}

static struct ibv_context *open_device(const char *name)
{
	int n;
	struct ibv_context **all = rdma_get_devices(&n), *found = NULL;
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(all[i]->device), name))
			found = all[i];
	return found;
}

int main(int argc, char **argv)
{
	static struct agent a;
	if (argc != 2) {
		fprintf(stderr, "usage: %s DEVICE\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	a.device = open_device(argv[1]);
	a.cm = rdma_create_event_channel();
	a.completions = a.device ? ibv_create_comp_channel(a.device) : NULL;
	for (int i = 0; a.device && i < 2; i++)
		a.pds[i] = ibv_alloc_pd(a.device);
	if (!a.cm || !a.completions || !a.pds[0] || !a.pds[1]) {
		fprintf(stderr, "%s: open %s: %s\n", argv[0], argv[1], a.device ? strerror(errno) : "there is no such RDMA device");
		return 1;
	}
	fcntl(a.completions->fd, F_SETFL, O_NONBLOCK);
	for (;;) {
		struct pollfd p[] = {
			{.fd = STDIN_FILENO, .events = POLLIN},
			{.fd = a.cm->fd, .events = POLLIN},
			{.fd = a.completions->fd, .events = POLLIN},
			{.fd = a.device->async_fd, .events = POLLIN},
		};
		take_completions(&a);
		fflush(stdout);
		if (!poll(p, 4, TICK_MS))
			for (struct conn *c = a.conns; c < a.conns + MAX_CONNS; c++)
				c->ticks += c->over;
		if (p[3].revents)
			take_async_event(&a);
		if (p[2].revents)
			take_notifications(&a);
		if (p[1].revents)
			take_cm_event(&a);
		if (p[0].revents && !read_lines(&a))
			return 0;
	}
}
