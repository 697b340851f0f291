/* SPDX-License-Identifier: MIT */
/* Two processes, or a crowd of threads, that sleep as often as they can: a wake-up that is lost stops them. */
#include <pthread.h>

#include "ring_fixture.h"

#define WAIT_MS 20000

/*
 * Ping-pong where everybody sleeps at every chance: a wake-up that is lost stops it, and the poll's time-out says so.
 */
static bool receive_asleep(struct ring_rx *rx, void *buf, size_t len, bool always_sleep)
{
	size_t got = 0;

	while (got < len) {
		ssize_t ret = ring_read(rx, (uint8_t *)buf + got, len - got);

		if (ret < 0)
			return false;
		got += (size_t)ret;
		if (ret || (!always_sleep && ring_rx_avail(rx)))
			continue;
		if (ring_rx_sleep_begin(rx))
			continue;
		bool rung = readable(rx->bells.bell_fd, WAIT_MS);

		ring_rx_sleep_end(rx, rung);
		if (!rung)
			return false;
	}
	return true;
}

static bool send_asleep(struct ring_tx *tx, const void *buf, size_t len)
{
	size_t sent = 0;

	while (sent < len) {
		ssize_t ret = ring_write(tx, (const uint8_t *)buf + sent, len - sent);

		if (ret < 0)
			return false;
		ring_tx_notify(tx);
		sent += (size_t)ret;
		if (ret || ring_tx_sleep_begin(tx, len - sent))
			continue;
		bool rung = readable(tx->bells.bell_fd, WAIT_MS);

		ring_tx_sleep_end(tx, rung);
		if (!rung)
			return false;
	}
	return true;
}

#define ROUNDS 20000

static void loses_no_wake_up_in_ping_pong(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	uint64_t i, word;
	pid_t pid;

	barrier_init();
	pid = fork_bound();
	if (!pid) {
		barrier_init();
		for (i = 0; i < ROUNDS; i++)
			if (!receive_asleep(&pair->attacher.rx, &word, 8, i & 128) || word != i ||
			    !send_asleep(&pair->attacher.tx, &word, 8))
				_exit(1);
		_exit(0);
	}
	for (i = 0; i < ROUNDS; i++) {
		assert_true(send_asleep(&pair->creator.tx, &i, 8));
		assert_true(receive_asleep(&pair->creator.rx, &word, 8, i & 64));
		assert_int_equal(word, i);
	}
	assert_int_equal(exit_status(pid), 0);
	pair_close(pair);
}

static void loses_no_wake_up_in_a_stream(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	uint8_t buf[3000];
	uint64_t i;
	unsigned seed = 7;
	pid_t pid;

	barrier_init();
	pid = fork_bound();
	if (!pid) {
		barrier_init();
		for (i = 0; i < ROUNDS; i++) {
			size_t len = 1 + (size_t)rand_r(&seed) % sizeof(buf), j;

			if (!receive_asleep(&pair->attacher.rx, buf, len, false))
				_exit(1);
			for (j = 0; j < len; j++)
				if (buf[j] != (uint8_t)(i + j))
					_exit(2);
		}
		_exit(0);
	}
	for (i = 0; i < ROUNDS; i++) {
		size_t len = 1 + (size_t)rand_r(&seed) % sizeof(buf), j;

		for (j = 0; j < len; j++)
			buf[j] = (uint8_t)(i + j);
		assert_true(send_asleep(&pair->creator.tx, buf, len));
	}
	assert_int_equal(exit_status(pid), 0);
	pair_close(pair);
}

/* Several threads sleep on one lane and take single bytes under a lock, as the shim's lane lock does. */
struct crowd {
	struct ring_rx *rx;
	pthread_mutex_t lock;
	uint32_t left;
	_Atomic uint32_t lost;
};

static void *crowd_member(void *arg)
{
	struct crowd *crowd = arg;
	uint8_t byte;

	for (;;) {
		ssize_t ret = 0;
		uint32_t left;

		pthread_mutex_lock(&crowd->lock);
		if (crowd->left)
			ret = ring_read(crowd->rx, &byte, 1);
		if (ret > 0)
			crowd->left--;
		left = crowd->left;
		pthread_mutex_unlock(&crowd->lock);
		if (!left || ret < 0)
			break;
		if (ret || ring_rx_sleep_begin(crowd->rx))
			continue;
		bool rung = readable(crowd->rx->bells.bell_fd, WAIT_MS);

		ring_rx_sleep_end(crowd->rx, rung);
		if (!rung) {
			fetch_add(&crowd->lost, 1);
			break;
		}
	}
	/* The last byte is gone: wake those that wait for another. */
	bell_ring(crowd->rx->bells.bell_fd, &crowd->rx->bells.own);
	return NULL;
}

static void loses_no_wake_up_among_several_sleepers(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct crowd crowd = { .rx = &pair->attacher.rx, .left = 3 * ROUNDS };
	pthread_t threads[3];
	uint32_t i;

	barrier_init();
	pthread_mutex_init(&crowd.lock, NULL);
	for (i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &crowd), 0);
	for (i = 0; i < ROUNDS; i++)
		assert_true(send_asleep(&pair->creator.tx, "abc", 3));
	for (i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(crowd.left, 0);
	assert_int_equal(load_relaxed(&crowd.lost), 0);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loses_no_wake_up_in_ping_pong),
		cmocka_unit_test(loses_no_wake_up_in_a_stream),
		cmocka_unit_test(loses_no_wake_up_among_several_sleepers),
	};

	alarm(50);
	return cmocka_run_group_tests_name("wake_stress", tests, NULL, NULL);
}
