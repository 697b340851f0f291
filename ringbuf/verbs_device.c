/* SPDX-License-Identifier: MIT */
/*
 * Devices that librdmacm has opened for us, and what is ours on them. It closes a device that has gone only when it finds another one, and never the last; and
 * the removal of one whose driver cannot take it away from a process (soft-RoCE) waits until the process has closed it. So we do that.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

enum { MAX_DEVICES = 16 };

enum { DEVICE_OPEN, DEVICE_GONE, DEVICE_LEFT };

struct device {
	_Atomic(struct ibv_context *) context;
	_Atomic uint32_t users; /* ids of ours that are bound to it */
	_Atomic uint32_t state;
	_Atomic uint32_t has_path;
};

static struct device devices[MAX_DEVICES];

/* The kernel takes the name away before it waits. */
static bool has_path(const struct ibv_context *context)
{
	return context->device && context->device->dev_path[0] &&
	       sys_call4(SYS_faccessat, AT_FDCWD, (long)context->device->dev_path, 0, 0) == 0;
}

/* Another one in its place, for librdmacm to close: what the device is asked from now on fails. */
static void replace(int *fd)
{
	int was = *fd, nothing = was < 0 ? -EBADF : (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);

	if (nothing < 0)
		return;
	verbs_hide_fd(&nothing);
	*fd = nothing;
	verbs_reveal_fd(was);
	sys_close(was);
}

static void leave(struct device *d, uint32_t state)
{
	struct ibv_context *context = load_relaxed(&d->context);

	if (!verbs_has_host() || !compare_exchange(&d->state, &state, DEVICE_LEFT))
		return;
	replace(&context->cmd_fd);
	replace(&context->async_fd);
}

static void note_opened(struct device *d, struct ibv_context *context)
{
	store_relaxed(&d->has_path, has_path(context));
	verbs_hide_fd(&context->cmd_fd);
	verbs_hide_fd(&context->async_fd);
}

static struct device *device_of(struct ibv_context *context)
{
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device *d = &devices[i];
		struct ibv_context *known = NULL;
		uint32_t left = DEVICE_LEFT;

		if (compare_exchange(&d->context, &known, context)) {
			note_opened(d, context);
			return d;
		}
		if (known != context)
			continue;
		/* Another one in the same place. */
		if (unlikely(load_relaxed(&d->state) == DEVICE_LEFT) && compare_exchange(&d->state, &left, DEVICE_OPEN))
			note_opened(d, context);
		return d;
	}
	return NULL;
}

void verbs_device_use(struct rdma_cm_id *id)
{
	struct device *d = id->verbs && !id->context ? device_of(id->verbs) : NULL;

	if (!d)
		return;
	id->context = d;
	fetch_add(&d->users, 1);
}

void verbs_device_gone(struct rdma_cm_id *id)
{
	struct device *d = id->context;

	if (d)
		store_relaxed(&d->state, DEVICE_GONE);
}

void verbs_destroy_id(struct rdma_cm_id *id)
{
	struct device *d = id->context;

	verbs_inside(true);
	rdma_destroy_id(id);
	verbs_inside(false);
	if (d && fetch_sub(&d->users, 1) == 1 && load_relaxed(&d->state) == DEVICE_GONE)
		leave(d, DEVICE_GONE);
}

void verbs_devices_look(void)
{
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device *d = &devices[i];
		const struct ibv_context *context = load_relaxed(&d->context);

		if (!context)
			return;
		if (!load_relaxed(&d->users) && load_relaxed(&d->state) == DEVICE_OPEN && load_relaxed(&d->has_path) && !has_path(context))
			leave(d, DEVICE_OPEN);
	}
}
