/* SPDX-License-Identifier: MIT */
/* The rest of libibverbs: the device, protection domains, registrations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

#undef ibv_reg_mr
#undef ibv_query_port

static _Atomic uint32_t domains;
static _Atomic uint32_t keys;

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

struct ibv_device **ibv_get_device_list(int *nr)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (list && adapter_open())
		list[0] = adapter_context()->device;
	if (nr)
		*nr = list && list[0];
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	return adapter_open() ? adapter_context() : NULL;
}

int ibv_close_device(struct ibv_context *context)
{
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->max_qp = (int)settings.max_qps;
	attr->max_qp_wr = SENDS_MAX;
	attr->max_sge = 1;
	attr->max_cq = CQS_MAX;
	attr->max_cqe = CQES_MAX;
	attr->max_mr = MRS_MAX;
	attr->max_mr_size = UINT64_MAX;
	attr->max_pd = CQS_MAX;
	attr->max_qp_rd_atom = 16;
	attr->phys_port_cnt = 1;
	return device_is_removed() ? EIO : 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *whole = (struct ibv_port_attr *)attr;

	if (port != 1)
		return EINVAL;
	whole->state = path_is_lost() ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	whole->max_mtu = whole->active_mtu = IBV_MTU_4096;
	whole->link_layer = IBV_LINK_LAYER_ETHERNET;
	return device_is_removed() ? EIO : 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct double_pd *d = device_is_removed() ? NULL : calloc(1, sizeof(*d));

	if (!d) {
		errno = device_is_removed() ? EIO : ENOMEM;
		return NULL;
	}
	d->pd = (struct ibv_pd){ .context = context, .handle = fetch_add(&domains, 1) + 1 };
	return &d->pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (((struct double_pd *)pd)->users)
		return EBUSY;
	free(pd);
	return 0;
}

static struct ibv_mr *refuse(struct double_mr *d, int err)
{
	free(d);
	errno = err;
	return NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct double_mr *d = calloc(1, sizeof(*d));
	struct shared_mr *m = own->mrs;
	uint32_t index = 0;

	if (!d || device_is_removed())
		return refuse(d, d ? EIO : ENOMEM);
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return refuse(d, EINVAL);
	if (load_relaxed(&settings.pinned) + length > settings.memlock)
		return refuse(d, ENOMEM);
	while (index < MRS_MAX && !compare_exchange(&m[index].key, &(uint32_t){ 0 }, 1))
		index++;
	if (index == MRS_MAX)
		return refuse(d, ENOMEM);
	fetch_add(&settings.pinned, length);
	d->index = index;
	m[index].addr = (uintptr_t)addr;
	m[index].length = length;
	m[index].access = (uint32_t)access;
	m[index].pd = pd->handle;
	store_release(&m[index].key, (fetch_add(&keys, 1) % 65536 + 1) * MRS_MAX + index);
	d->mr = (struct ibv_mr){
		.context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = index,
		.lkey = load_relaxed(&m[index].key), .rkey = load_relaxed(&m[index].key),
	};
	((struct double_pd *)pd)->users++;
	return &d->mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	if (iova != (uintptr_t)addr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return ibv_reg_mr(pd, addr, length, (int)(access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE));
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct double_mr *d = (struct double_mr *)mr;

	exchange(&own->mrs[d->index].key, 0);
	fetch_sub(&settings.pinned, mr->length);
	((struct double_pd *)mr->pd)->users--;
	free(d);
	return 0;
}

void mrs_forget(void)
{
	for (int i = 0; i < MRS_MAX; i++)
		own->mrs[i].access &= (uint32_t)~(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

bool mr_allows(struct adapter *a, uint32_t key, uint32_t pd, uint64_t addr, uint64_t length, int access)
{
	const struct shared_mr *m = &a->mrs[key % MRS_MAX];

	return key >= MRS_MAX && load_acquire(&m->key) == key && m->pd == pd && (m->access & (uint32_t)access) == (uint32_t)access && addr >= m->addr &&
	       length <= m->length && addr - m->addr <= m->length - length;
}

/* The connection manager makes all other transitions. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (!(mask & IBV_QP_STATE) || attr->qp_state != IBV_QPS_ERR)
		return EOPNOTSUPP;
	qp_fail((struct double_qp *)qp);
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = load_relaxed(&own->qps[((struct double_qp *)qp)->index].state);
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "success", [IBV_WC_LOC_LEN_ERR] = "local length error", [IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "work request flushed", [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error", [IBV_WC_REM_OP_ERR] = "remote operation error",
		[IBV_WC_RETRY_EXC_ERR] = "retries exceeded", [IBV_WC_RNR_RETRY_EXC_ERR] = "receiver not ready",
	};

	return status < sizeof(names) / sizeof(names[0]) && names[status] ? names[status] : "unknown";
}
