// The device, and what it says of itself.
#include "lib.h"
#include <endian.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

static struct ibv_device device = {
	.node_type = IBV_NODE_RNIC, .transport_type = IBV_TRANSPORT_IWARP, .name = "ironwarp0", .dev_name = "uverbs0",
	.dev_path = "/nonexistent/infiniband_verbs/uverbs0", .ibdev_path = "/nonexistent/infiniband/ironwarp0",
};

PUBLIC struct ibv_device **ibv_get_device_list(int *n)
{
	redirect(__builtin_return_address(0));
	struct ibv_device **list = calloc(2, sizeof *list);
	if (!list)
		return NULL;
	list[0] = &device;
	if (n)
		*n = 1;
	return list;
}

PUBLIC void ibv_free_device_list(struct ibv_device **list) { free(list); }
PUBLIC const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
PUBLIC __be64 ibv_get_device_guid(struct ibv_device *d) { return IW_GUID; }
PUBLIC int ibv_get_device_index(struct ibv_device *d) { return 0; }

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t n)
{
	struct ibv_port_attr p = {
		.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .gid_tbl_len = 1, .max_msg_sz = UINT32_MAX,
		.pkey_tbl_len = 1, .active_width = 2, .active_speed = 4, .phys_state = 5, .link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	if (port != 1)
		return EINVAL;
	memset(a, 0, n);
	memcpy(a, &p, n < sizeof p ? n : sizeof p);
	return 0;
}

PUBLIC int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	return query_port(c, port, (struct ibv_port_attr *)a, offsetof(struct ibv_port_attr, port_cap_flags2));
}

PUBLIC int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	*a = (struct ibv_device_attr){
		.fw_ver = "ironwarp", .node_guid = IW_GUID, .sys_image_guid = IW_GUID, .max_mr_size = UINT32_MAX, .page_size_cap = 4096,
		.vendor_id = 0x024957, .max_qp = IW_MAX_QP, .max_qp_wr = IW_MAX_WR, .max_sge = IW_MAX_SGE, .max_sge_rd = IW_MAX_SGE,
		.device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
		.max_cq = IW_MAX_CQ, .max_cqe = IW_MAX_CQE, .max_mr = IW_MAX_MR, .max_mw = IW_MAX_MR, .max_pd = IW_MAX_PD,
		.max_qp_rd_atom = IW_MAX_DEPTH, .max_qp_init_rd_atom = IW_MAX_DEPTH, .max_res_rd_atom = IW_MAX_DEPTH * IW_MAX_QP,
		.atomic_cap = IBV_ATOMIC_HCA, .max_srq = IW_MAX_SRQ, .max_srq_wr = IW_MAX_WR, .max_srq_sge = IW_MAX_SGE,
		.max_pkeys = 1, .phys_port_cnt = 1,
	};
	return 0;
}

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t n)
{
	if (in && in->comp_mask)
		return EINVAL;
	if (n < sizeof a->orig_attr)
		return EINVAL;
	memset(a, 0, n);
	if (n >= offsetof(struct ibv_device_attr_ex, phys_port_cnt_ex) + sizeof a->phys_port_cnt_ex)
		a->phys_port_cnt_ex = 1;
	return ibv_query_device(c, &a->orig_attr);
}

PUBLIC int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	uint64_t guid = IW_GUID;
	memset(gid, 0, sizeof *gid);
	memcpy(gid->raw, &guid, 6);
	return 0;
}

PUBLIC int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t n)
{
	struct ibv_gid_entry x = { .gid_index = index, .port_num = port };
	if (flags || ibv_query_gid(c, port, index, &x.gid))
		return EINVAL;
	memset(e, 0, n);
	memcpy(e, &x, n < sizeof x ? n : sizeof x);
	return 0;
}

PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t n)
{
	if (max < 1)
		return -EINVAL;
	int err = _ibv_query_gid_ex(c, 1, 0, e, flags, n);
	return err ? -err : 1;
}

PUBLIC int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16(0xffff);
	return 0;
}

PUBLIC int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	if (port == 1 && pkey == htobe16(0xffff))
		return 0;
	errno = EINVAL;
	return -1;
}

// Contexts, for events that are every context's.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct iw_context *contexts;

static struct object {
	void *p;
	uint32_t taken; // events
} *objects[IW_KINDS];
enum { SLOTS = 1 << 16 };

void enter(int kind, uint32_t handle, void *p)
{
	pthread_mutex_lock(&lock);
	if (!objects[kind])
		objects[kind] = calloc(SLOTS, sizeof *objects[kind]);
	if (objects[kind])
		objects[kind][handle % SLOTS] = (struct object){ .p = p };
	pthread_mutex_unlock(&lock);
}

uint32_t leave(int kind, uint32_t handle)
{
	uint32_t taken = 0;
	pthread_mutex_lock(&lock);
	if (objects[kind]) {
		taken = objects[kind][handle % SLOTS].taken;
		objects[kind][handle % SLOTS] = (struct object){ 0 };
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

// taken is what an event is about that the program takes: it stays until that is acknowledged. NULL: it is gone.
static void *taken(int kind, uint32_t handle)
{
	void *p = NULL;
	pthread_mutex_lock(&lock);
	if (objects[kind] && (p = objects[kind][handle % SLOTS].p))
		objects[kind][handle % SLOTS].taken++;
	pthread_mutex_unlock(&lock);
	return p;
}

struct message { uint32_t kind, handle; };

// async_event is called by the engine. A program that takes no events loses the latest.
void async_event(uint32_t kind, uint32_t handle)
{
	struct message m = { kind, handle };
	pthread_mutex_lock(&lock);
	for (struct iw_context *c = contexts; c; c = c->next)
		if (write(c->async_in, &m, sizeof m) < 0)
			break;
	pthread_mutex_unlock(&lock);
}

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	int p[2];
	if (!started_by_run())
		return NULL;
	struct iw_context *x = calloc(1, sizeof *x);
	if (!x)
		return NULL;
	if (pipe2(p, O_CLOEXEC)) {
		free(x);
		return NULL;
	}
	fcntl(p[1], F_SETFL, O_NONBLOCK);
	x->async_in = p[1];
	struct verbs_context *v = &x->v;
	v->sz = sizeof *v;
	v->query_port = query_port;
	v->query_device_ex = query_device_ex;
	v->create_cq_ex = iw_create_cq_ex;
	v->create_qp_ex = iw_create_qp_ex;
	v->create_srq_ex = iw_create_srq_ex;
	struct ibv_context *c = &v->context;
	c->device = d;
	c->cmd_fd = -1;
	c->async_fd = p[0];
	c->num_comp_vectors = 1;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&c->mutex, NULL);
	c->ops.alloc_mw = iw_alloc_mw;
	c->ops.bind_mw = iw_bind_mw;
	c->ops.dealloc_mw = iw_dealloc_mw;
	c->ops.poll_cq = iw_poll_cq;
	c->ops.req_notify_cq = iw_req_notify_cq;
	c->ops.post_srq_recv = iw_post_srq_recv;
	c->ops.post_send = iw_post_send;
	c->ops.post_recv = iw_post_recv;
	pthread_mutex_lock(&lock);
	x->next = contexts;
	contexts = x;
	pthread_mutex_unlock(&lock);
	return c;
}

PUBLIC int ibv_close_device(struct ibv_context *c)
{
	struct iw_context *x = context_of(c);
	pthread_mutex_lock(&lock);
	for (struct iw_context **p = &contexts; *p; p = &(*p)->next)
		if (*p == x) {
			*p = x->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	close(c->async_fd);
	close(x->async_in);
	pthread_mutex_destroy(&c->mutex);
	free(x);
	return 0;
}

static int kind_of(uint32_t event)
{
	return event == IBV_EVENT_CQ_ERR ? IW_CQS : event == IBV_EVENT_SRQ_LIMIT_REACHED ? IW_SRQS : IW_QPS;
}

PUBLIC int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	struct message m;
	for (;;) {
		ssize_t n = read(c->async_fd, &m, sizeof m);
		if (n != sizeof m)
			return -1;
		int kind = kind_of(m.kind);
		void *p = taken(kind, m.handle);
		if (!p)
			continue; // it is gone meanwhile
		*e = (struct ibv_async_event){ .event_type = m.kind };
		switch (kind) {
		case IW_CQS: e->element.cq = p; break;
		case IW_QPS: e->element.qp = p; break;
		default: e->element.srq = p;
		}
		return 0;
	}
}

static void acknowledge(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *n)
{
	pthread_mutex_lock(m);
	++*n;
	pthread_cond_signal(c);
	pthread_mutex_unlock(m);
}

PUBLIC void ibv_ack_async_event(struct ibv_async_event *e)
{
	struct ibv_cq *cq = e->element.cq;
	struct ibv_qp *qp = e->element.qp;
	struct ibv_srq *srq = e->element.srq;
	switch (kind_of(e->event_type)) {
	case IW_CQS: acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed); break;
	case IW_QPS: acknowledge(&qp->mutex, &qp->cond, &qp->events_completed); break;
	default: acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
	}
}

// A Go runtime does not use MADV_DONTFORK, and after fork the child has no RDMA anyhow.
PUBLIC int ibv_fork_init(void) { return 0; }
PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
PUBLIC int ibv_dontfork_range(void *base, size_t n) { return 0; }
PUBLIC int ibv_dofork_range(void *base, size_t n) { return 0; }

PUBLIC const char *ibv_get_sysfs_path(void) { return "/sys"; }

// What ibv_devinfo asks for, under a version that is private to rdma-core.
PUBLIC int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, uint32_t *type)
{
	*type = 0; // the kernel says so of devices without RoCE
	return port == 1 && index == 0 ? 0 : EINVAL;
}
PUBLIC int ibv_read_ibdev_sysfs_file(char *buf, size_t n, void *device, const char *format, ...) { return -1; }

// The one file that librdmacm reads says which commands its device takes.
PUBLIC int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t n)
{
	redirect(__builtin_return_address(0));
	if (!strstr(file, "rdma_cm/abi_version") || n < 2)
		return -1;
	strcpy(buf, "4");
	return 1;
}

// Words for numbers.
PUBLIC const char *ibv_node_type_str(enum ibv_node_type t)
{
	static const char *const names[] = { [1] = "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router", "iWARP NIC", "usNIC", "usNIC UDP", "unspecified" };
	return t >= 1 && (size_t)t < sizeof names / sizeof *names ? names[t] : "unknown";
}

PUBLIC const char *ibv_port_state_str(enum ibv_port_state s)
{
	static const char *const names[] = { "no state change (NOP)", "down", "init", "armed", "active", "active defer" };
	return s < sizeof names / sizeof *names ? names[s] : "unknown";
}

PUBLIC const char *ibv_event_type_str(enum ibv_event_type t)
{
	static const char *const names[] = {
		"CQ error", "local work queue catastrophic error", "local invalid request", "local access violation", "communication established",
		"send queue drained", "path migrated", "path migration request error", "local catastrophic error", "port active", "port error",
		"LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached", "last WQE reached", "client reregistration",
		"GID table change", "WQ fatal",
	};
	return t < sizeof names / sizeof *names ? names[t] : "unknown";
}

PUBLIC const char *ibv_wc_status_str(enum ibv_wc_status s)
{
	static const char *const names[] = {
		"success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
		"Work Request Flushed Error", "memory window bind error", "bad response error", "local access error", "remote invalid request error",
		"remote access error", "remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded",
		"local RDD violation error", "remote invalid RD request", "aborted error", "invalid EE context number", "invalid EE context state",
		"fatal error", "response timeout error", "general error", "TM error", "TM software rendezvous",
	};
	return s < sizeof names / sizeof *names ? names[s] : "unknown";
}

static const struct { enum ibv_rate rate; int mult, mbps; } rates[] = {
	{ IBV_RATE_2_5_GBPS, 1, 2500 }, { IBV_RATE_5_GBPS, 2, 5000 }, { IBV_RATE_10_GBPS, 4, 10000 }, { IBV_RATE_20_GBPS, 8, 20000 },
	{ IBV_RATE_30_GBPS, 12, 30000 }, { IBV_RATE_40_GBPS, 16, 40000 }, { IBV_RATE_60_GBPS, 24, 60000 }, { IBV_RATE_80_GBPS, 32, 80000 },
	{ IBV_RATE_120_GBPS, 48, 120000 },
};
enum { RATES = sizeof rates / sizeof *rates };

PUBLIC int ibv_rate_to_mult(enum ibv_rate r)
{
	for (int i = 0; i < RATES; i++)
		if (rates[i].rate == r)
			return rates[i].mult;
	return -1;
}

PUBLIC enum ibv_rate mult_to_ibv_rate(int mult)
{
	for (int i = 0; i < RATES; i++)
		if (rates[i].mult == mult)
			return rates[i].rate;
	return IBV_RATE_MAX;
}

PUBLIC int ibv_rate_to_mbps(enum ibv_rate r)
{
	for (int i = 0; i < RATES; i++)
		if (rates[i].rate == r)
			return rates[i].mbps;
	return -1;
}

PUBLIC enum ibv_rate mbps_to_ibv_rate(int mbps)
{
	for (int i = 0; i < RATES; i++)
		if (rates[i].mbps == mbps)
			return rates[i].rate;
	return IBV_RATE_MAX;
}

// What iWARP does not have, and what only drivers of devices have.
#define NONE(result, name, args) PUBLIC result *name args { errno = EOPNOTSUPP; return NULL; }
#define NOT(name, args) PUBLIC int name args { return EOPNOTSUPP; }
NONE(struct ibv_ah, ibv_create_ah, (struct ibv_pd *p, struct ibv_ah_attr *a))
NONE(struct ibv_ah, ibv_create_ah_from_wc, (struct ibv_pd *p, struct ibv_wc *w, struct ibv_grh *g, uint8_t n))
NOT(ibv_init_ah_from_wc, (struct ibv_context *c, uint8_t n, struct ibv_wc *w, struct ibv_grh *g, struct ibv_ah_attr *a))
NOT(ibv_destroy_ah, (struct ibv_ah *a))
NOT(ibv_attach_mcast, (struct ibv_qp *q, const union ibv_gid *g, uint16_t lid))
NOT(ibv_detach_mcast, (struct ibv_qp *q, const union ibv_gid *g, uint16_t lid))
NOT(ibv_resolve_eth_l2_from_gid, (struct ibv_context *c, struct ibv_ah_attr *a, uint8_t mac[6], uint16_t *vid))
NONE(struct ibv_context, ibv_import_device, (int fd))
NONE(struct ibv_mr, ibv_import_mr, (struct ibv_pd *p, uint32_t h))
NONE(struct ibv_pd, ibv_import_pd, (struct ibv_context *c, uint32_t h))
NONE(struct ibv_dm, ibv_import_dm, (struct ibv_context *c, uint32_t h))
NONE(struct ibv_mr, ibv_reg_dmabuf_mr, (struct ibv_pd *p, uint64_t off, size_t n, uint64_t iova, int fd, int access))
PUBLIC void ibv_unimport_mr(struct ibv_mr *m) {}
PUBLIC void ibv_unimport_pd(struct ibv_pd *p) {}
PUBLIC void ibv_unimport_dm(struct ibv_dm *d) {}
NOT(ibv_query_ece, (struct ibv_qp *q, struct ibv_ece *e))
NOT(ibv_set_ece, (struct ibv_qp *q, struct ibv_ece *e))
PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *q, enum ibv_wr_opcode op, uint32_t flags) { return 0; }
PUBLIC void ibv_register_driver(const char *name, void *init) {}
