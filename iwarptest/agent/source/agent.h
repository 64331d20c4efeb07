// A consumer of librdmacm and libibverbs that does what lines on its standard
// input say. See ../doc.go for the lines.
#ifndef AGENT_H
#define AGENT_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	MAX_CONNS = 64,
	MAX_REGIONS = 4096,
	MAX_SGES = 8,
	MAX_REQUESTS = 16,
	MAX_WORDS = 64,
	MAX_LINE = 1 << 14,
	TICK_MS = 50,		// completion queues are looked at that often, event or not
	SETUP_SECONDS = 40,	// for a connection to come up
	DRAIN_TICKS = 10,	// for completions to come after the stream has ended; those that do not are lost
};

// The operation that the agent itself posts: a Write of nothing.
#define OWN_ID UINT64_MAX

struct region {
	char *memory; // NULL: the entry is free
	size_t size, guard; // of the region, and of the bytes before and after it
	struct ibv_mr *mr;  // NULL: deregistered
};

struct conn {
	struct rdma_cm_id *id; // NULL: the entry is free
	struct ibv_cq *send_cq, *recv_cq;
	int waiting_recvs, waiting_sends; // posted receives and signaled sends
	bool closing;			  // to be disconnected when the sends are done
	bool opening;			  // the Write that opens the stream is under way
	bool over;			  // the stream has ended
	bool told;			  // and that has been told
	int ticks;			  // since the end
};

// request is a peer that waits to be accepted.
struct request {
	struct rdma_cm_id *id;
	int ird, ord; // as the peer has them
};

struct agent {
	struct ibv_context *device;
	struct rdma_event_channel *cm;
	struct rdma_cm_id *listener;
	struct request requests[MAX_REQUESTS];
	int nrequests;
	struct ibv_comp_channel *completions;
	struct ibv_pd *pds[2];
	struct region regions[MAX_REGIONS];
	struct conn conns[MAX_CONNS];
};

// Replies are printed by the functions that carry out a line: each prints one.
void ok(const char *format, ...) __attribute__((format(printf, 1, 2)));
void done(void);
void no(const char *what, int error); // error: an errno value, 0 for none

// take_input reads the bytes that follow a line; false: there are fewer.
bool take_input(char *p, size_t n);

// memory.c
void do_reg(struct agent *a, int n, char **w);
void do_dereg(struct agent *a, int n, char **w);
void do_forget(struct agent *a, int n, char **w);
void do_store(struct agent *a, int n, char **w);
void do_load(struct agent *a, int n, char **w);
struct region *find_region(struct agent *a, const char *word);

// streams.c
void do_listen(struct agent *a, int n, char **w);
void do_accept(struct agent *a, int n, char **w);
void do_connect(struct agent *a, int n, char **w);
void do_close(struct agent *a, int n, char **w);
void do_abort(struct agent *a, int n, char **w);
void do_free(struct agent *a, int n, char **w);
struct conn *find_conn(struct agent *a, const char *word);
void take_cm_event(struct agent *a);

// work.c
void do_recv(struct agent *a, int n, char **w);
void do_send(struct agent *a, int n, char **w);
int post_nothing(struct conn *c);
void take_completions(struct agent *a);
void take_notifications(struct agent *a);

#endif
