/* SPDX-License-Identifier: MIT */
/* A device that is being removed waits until this process has it open no more, and nobody but the engine closes it (ringbuf/verbs_device.c). */
#include "verbs_fake_in.h"
#include "verbs_fixture.h"

#include <fcntl.h>
#include <stdio.h>

static int stay(int fd)
{
	return -EMFILE;
}

static void say_nothing(int fd)
{
}

static void go_inside(bool in)
{
}

static const struct verbs_host host = { .hide = stay, .reveal = say_nothing, .inside = go_inside };

struct device {
	struct ibv_context *context;
	int cmd, async; /* hang up when the device is not open any more */
};

static struct device open_device(void)
{
	struct device d = { .context = fake_context() };
	int cmd[2], async[2];

	assert_int_equal(pipe2(cmd, O_CLOEXEC), 0);
	assert_int_equal(pipe2(async, O_CLOEXEC), 0);
	d.context->cmd_fd = cmd[1];
	d.context->async_fd = async[1];
	d.cmd = cmd[0];
	d.async = async[0];
	return d;
}

static bool is_open(const struct device *d)
{
	struct pollfd p[2] = { { .fd = d->cmd }, { .fd = d->async } };
	int shut = poll(p, 2, 0);

	assert_true(shut == 0 || shut == 2);
	return shut == 0;
}

/* As librdmacm does when it finds that the device has gone. */
static void close_device(struct device *d)
{
	assert_int_equal(close(d->context->cmd_fd), 0);
	assert_int_equal(close(d->context->async_fd), 0);
	close(d->cmd);
	close(d->async);
}

static void is_left_with_the_last_that_is_ours(void **state)
{
	struct device d = open_device();
	struct sockaddr_in local = far_address(3000);
	struct far_pair *p = far_open(FAR_RING_BYTES), *q = far_open(FAR_RING_BYTES);
	struct verbs_attempt *offer;

	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_OK);
	fake_remove(engine_of(&p->b)->id);
	assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), -ENODEV);
	assert_int_equal(verbs->pump(&p->a, VERBS_RUNG), -ECONNRESET);
	/* Dead for another reason, and nobody has looked at the event yet. */
	fake_remove(engine_of(&q->a)->id);
	fake_fail(qp_of(&q->a), IBV_WC_RETRY_EXC_ERR);
	far_put(&q->a, 1);
	assert_int_equal(verbs->pump(&q->a, 0), -EIO);
	assert_int_equal(verbs->pump(&q->b, VERBS_RUNG), -ECONNRESET);
	assert_true(is_open(&d));
	verbs->end(offer);
	assert_false(is_open(&d));
	verbs->close(&p->a);
	verbs->close(&p->b);
	munmap(p, sizeof(*p));
	far_close(q);
	close_device(&d);
}

/* Of which nobody tells, as nothing of ours was on it. */
static void is_left_by_the_next_attempt(void **state)
{
	char path[] = "/tmp/ringway-device-XXXXXX";
	struct device d = open_device(), next;
	struct sockaddr_in local = far_address(3000);
	struct verbs_attempt *offer;
	int file = mkstemp(path);

	assert_true(file >= 0);
	close(file);
	snprintf(d.context->device->dev_path, sizeof(d.context->device->dev_path), "%s", path);
	far_close(far_open(FAR_RING_BYTES));
	far_close(far_open(FAR_RING_BYTES));
	assert_true(is_open(&d));
	assert_int_equal(unlink(path), 0);
	fake.no_device = true;
	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_NO_DEVICE);
	assert_false(is_open(&d));
	close_device(&d);
	d.context->device->dev_path[0] = 0;

	/* Another one that happens to lie in the same place. */
	fake.no_device = false;
	next = open_device();
	far_close(far_open(FAR_RING_BYTES));
	assert_true(is_open(&next));
	close_device(&next);
}

/* The program has things of its own on it. */
static void is_the_programs_where_the_libraries_are(void **state)
{
	struct device d = open_device();
	struct far_pair *p = far_open(FAR_RING_BYTES);

	verbs->set_host(NULL);
	fake_remove(engine_of(&p->b)->id);
	assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), -ENODEV);
	far_close(p);
	assert_true(is_open(&d));
	close_device(&d);
}

static int fresh_host(void **state)
{
	verbs->set_host(&host);
	return fresh(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(is_left_with_the_last_that_is_ours, fresh_host),
		cmocka_unit_test_setup(is_left_by_the_next_attempt, fresh_host),
		cmocka_unit_test_setup(is_the_programs_where_the_libraries_are, fresh_host),
	};

	return cmocka_run_group_tests_name("verbs_device", tests, NULL, NULL);
}
