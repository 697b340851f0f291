/* SPDX-License-Identifier: MIT */
/*
 * A thread for each direction at each end, all of them asleep most of the time: a wake-up that is lost, or a pump that leaves something to nobody,
 * stops this test for good, and the alarm ends it.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include "verbs_fixture.h"

#define BYTES (UINT64_C(1) << 20)

static struct far_pair *pair;
static _Atomic unsigned wrong;

static void sleep_on(struct ring_link *link, bool rx)
{
	struct pollfd p[2] = { { .fd = verbs->wait_fd(link), .events = POLLIN },
			       { .fd = rx ? link_rx_fd(link) : link_tx_fd(link), .events = POLLIN } };

	if (rx ? link->ops->rx_sleep_begin(link) : link->ops->tx_sleep_begin(link, SIZE_MAX))
		return;
	poll(p, 2, -1);
	if (p[0].revents)
		verbs->pump(link, VERBS_RUNG);
	if (rx)
		link_rx_sleep_end(link, p[1].revents != 0);
	else
		link_tx_sleep_end(link, p[1].revents != 0);
}

static void *sender(void *arg)
{
	struct ring_link *link = arg;
	unsigned seed = 1;
	uint8_t buf[3000];

	for (uint64_t pos = 0; pos < BYTES;) {
		size_t len = (size_t)rand_r(&seed) % (rand_r(&seed) % 4 ? 40 : sizeof(buf)) + 1;
		ssize_t n;

		for (size_t i = 0; i < len; i++)
			buf[i] = byte_at(pos + i);
		n = link->ops->send(link, buf, BYTES - pos < len ? (size_t)(BYTES - pos) : len);
		if (n > 0)
			pos += (uint64_t)n;
		else if (n == 0)
			sleep_on(link, false);
		else
			fetch_add(&wrong, 1);
	}
	/* Gone for good: whatever is held is the receiver's to fetch. */
	return NULL;
}

static void *receiver(void *arg)
{
	struct ring_link *link = arg;
	unsigned seed = 2;
	uint8_t buf[3000];

	for (uint64_t pos = 0; pos < BYTES;) {
		ssize_t n = link->ops->recv(link, buf, (size_t)rand_r(&seed) % sizeof(buf) + 1);

		for (ssize_t i = 0; i < n; i++)
			if (buf[i] != byte_at(pos + (uint64_t)i))
				fetch_add(&wrong, 1);
		if (n > 0)
			pos += (uint64_t)n;
		else if (n == 0)
			sleep_on(link, true);
		else
			fetch_add(&wrong, 1);
	}
	return NULL;
}

static void each_direction_has_its_own_thread(void **state)
{
	static void *(*const bodies[4])(void *) = { sender, receiver, sender, receiver };
	pthread_t threads[4];

	fake_reset();
	pair = far_open(FAR_RING_BYTES);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, bodies[i], i < 2 ? &pair->a : &pair->b), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(wrong, 0);
	assert_int_equal(fake.rnr, 0);
	assert_int_equal(fake.outside, 0);
	far_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_direction_has_its_own_thread),
	};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(55);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
