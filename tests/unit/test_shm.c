/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <sys/resource.h>

#include "ring_fixture.h"

static int lowest_free_fd(void)
{
	int fd = fcntl(0, F_DUPFD, 3);

	close(fd);
	return fd;
}

static void each_end_sends_to_the_other(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	const struct transport_ops *ops = pair->creator.ops;
	char buf[16];

	assert_string_equal(ops->name, "shm");
	assert_ptr_equal(ops, pair->attacher.ops);
	assert_int_equal(ops->send(&pair->creator, "to attacher", 11), 11);
	assert_int_equal(ops->send(&pair->attacher, "to creator", 10), 10);
	assert_int_equal(ops->avail(&pair->attacher, 1), 11);
	assert_int_equal(ops->queued(&pair->creator), 11);
	assert_int_equal(ops->room(&pair->creator, 1), FIXTURE_RING_BYTES - 11);
	assert_int_equal(ops->recv(&pair->attacher, buf, sizeof(buf)), 11);
	assert_memory_equal(buf, "to attacher", 11);
	assert_int_equal(ops->recv(&pair->creator, buf, sizeof(buf)), 10);
	assert_memory_equal(buf, "to creator", 10);
	assert_int_equal(ops->queued(&pair->creator), 0);
	pair_close(pair);
}

static void peeks_without_taking(void **state)
{
	static const struct {
		size_t offset, len;
		const char *got;
	} rows[] = {
		{ 0, 3, "abc" },
		{ 2, 3, "cde" },
		{ 4, 9, "ef" },
		{ 6, 1, "" },
		{ 99, 1, "" },
		{ 0, 0, "" },
	};
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	const struct transport_ops *ops = pair->creator.ops;
	char buf[16];
	size_t i;

	pair_start_at(pair, FIXTURE_RING_BYTES - 3);
	assert_int_equal(ops->send(&pair->creator, "abcdef", 6), 6);
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(ops->peek(&pair->attacher, rows[i].offset, buf, rows[i].len), strlen(rows[i].got));
		assert_memory_equal(buf, rows[i].got, strlen(rows[i].got));
	}
	assert_int_equal(ops->avail(&pair->attacher, 1), 6);
	pair_close(pair);
}

static void wakes_the_right_bell(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	const struct transport_ops *ops = pair->creator.ops;
	static uint8_t full[FIXTURE_RING_BYTES];

	assert_false(ops->rx_sleep_begin(&pair->attacher));
	ops->send(&pair->creator, "x", 1);
	assert_true(readable(link_rx_fd(&pair->attacher), 0));
	assert_false(readable(link_tx_fd(&pair->attacher), 0));
	assert_false(readable(link_rx_fd(&pair->creator), 0));
	assert_false(readable(link_tx_fd(&pair->creator), 0));
	link_rx_sleep_end(&pair->attacher, true);

	assert_int_equal(ops->send(&pair->creator, full, sizeof(full)), sizeof(full) - 1);
	assert_false(ops->tx_sleep_begin(&pair->creator, 1));
	assert_int_equal(ops->recv(&pair->attacher, full, sizeof(full)), sizeof(full));
	assert_true(readable(link_tx_fd(&pair->creator), 0));
	assert_false(readable(link_rx_fd(&pair->creator), 0));
	link_tx_sleep_end(&pair->creator, true);
	pair_close(pair);
}

static void wakes_the_sleeper_of_a_large_send_after_the_first_step(void **state)
{
	struct pair *pair = pair_open(1 << 16);
	static uint8_t big[1 << 16];

	assert_false(ring_rx_sleep_begin(&pair->attacher.rx));
	assert_int_equal(ring_write(&pair->creator.tx, big, sizeof(big)), sizeof(big));
	assert_true(readable(pair->attacher.rx.bells.bell_fd, 0));
	pair_close(pair);
}

static void nobody_is_rung_before_the_ends_have_met(void **state)
{
	struct ring_link link = { 0 };
	struct link_bells own;
	uint64_t rings = load_relaxed(&bell_counts.rings);
	int fd = shm_create(&link, FIXTURE_RING_BYTES, &own);

	close(fd);
	/* The word says ARMED, as a hostile peer could, and there is no address. */
	peer_publish_u32(&link.tx.ctl->rx_state.wake, WAKE_ARMED);
	assert_int_equal(link.ops->send(&link, "x", 1), 1);
	assert_int_equal(load_relaxed(&bell_counts.rings), rings);
	shm_close(&link);
}

static void closing_leaves_no_fd_and_no_trace_in_the_record(void **state)
{
	int before = lowest_free_fd();
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_link copy = pair->creator;

	shm_close(&pair->creator);
	assert_memory_equal(&copy, &pair->creator, sizeof(copy));
	shm_close(&pair->attacher);
	assert_int_equal(lowest_free_fd(), before);
	munmap(pair, sizeof(*pair));
}

static void closing_nothing_is_harmless(void **state)
{
	struct ring_link link = { 0 };

	shm_close(&link);
}

/* Each number of fds that is too small: refused, and not one fd is left open. */
static void short_of_fds_it_leaves_nothing_open(void **state)
{
	struct ring_link other = { 0 };
	struct link_bells own;
	int fd = shm_create(&other, FIXTURE_RING_BYTES, &own);
	int lowest = lowest_free_fd(), spare;

	for (spare = 0; spare < 4; spare++) {
		pid_t pid = fork_bound();

		if (!pid) {
			struct rlimit limit = { .rlim_cur = (rlim_t)(lowest + spare), .rlim_max = (rlim_t)(lowest + spare) };
			struct ring_link link = { 0 };
			int ret;

			setrlimit(RLIMIT_NOFILE, &limit);
			ret = shm_create(&link, FIXTURE_RING_BYTES, &own);
			if (spare < 3 ? ret != -EMFILE || link.ops : ret < 0)
				_exit(1);
			if (spare < 3 && spare > 0 && lowest_free_fd() != lowest)
				_exit(2);
			if (ret >= 0) {
				shm_close(&link);
				close(ret);
			}
			ret = shm_attach(&link, fd, FIXTURE_RING_BYTES, &own);
			if (spare < 2 ? ret != -EMFILE : ret != 0)
				_exit(3);
			_exit(0);
		}
		assert_int_equal(exit_status(pid), 0);
	}
	close(fd);
	shm_close(&other);
}

static void a_liar_gets_an_error_in_each_operation(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	const struct transport_ops *ops = pair->creator.ops;
	uint8_t buf[FIXTURE_RING_BYTES];

	peer_publish_u64(&pair->creator.rx.front->tail_pos, FIXTURE_RING_BYTES + 1);
	assert_int_equal(ops->recv(&pair->creator, buf, 1), -EPROTO);
	assert_int_equal(ops->peek(&pair->creator, 0, buf, 1), -EPROTO);
	assert_int_equal(ops->avail(&pair->creator, 1), -EPROTO);
	peer_publish_u64(&pair->creator.tx.ctl->rx.head_pos, 1);
	assert_int_equal(ops->queued(&pair->creator), -EPROTO);
	assert_int_equal(ops->send(&pair->creator, buf, sizeof(buf)), sizeof(buf));
	peer_publish_u64(&pair->creator.tx.ctl->rx.head_pos, sizeof(buf) + 1);
	assert_int_equal(ops->send(&pair->creator, buf, 1), -EPROTO);
	assert_int_equal(ops->room(&pair->creator, 1), -EPROTO);
	pair_close(pair);
}

/* The receiver moves to a forked child in mid-stream: the private half is shared, so it goes on where the parent was. */
static void a_forked_child_goes_on_where_the_parent_was(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	const struct transport_ops *ops = pair->creator.ops;
	char buf[8];
	pid_t pid;

	ops->send(&pair->creator, "abcdef", 6);
	assert_int_equal(ops->recv(&pair->attacher, buf, 2), 2);
	pid = fork_bound();
	if (!pid) {
		bool right = ops->recv(&pair->attacher, buf, 2) == 2 && !memcmp(buf, "cd", 2);

		shm_close(&pair->attacher);
		_exit(right ? 0 : 1);
	}
	assert_int_equal(exit_status(pid), 0);
	assert_int_equal(ops->recv(&pair->attacher, buf, 8), 2);
	assert_memory_equal(buf, "ef", 2);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_end_sends_to_the_other),
		cmocka_unit_test(peeks_without_taking),
		cmocka_unit_test(wakes_the_right_bell),
		cmocka_unit_test(wakes_the_sleeper_of_a_large_send_after_the_first_step),
		cmocka_unit_test(nobody_is_rung_before_the_ends_have_met),
		cmocka_unit_test(closing_leaves_no_fd_and_no_trace_in_the_record),
		cmocka_unit_test(closing_nothing_is_harmless),
		cmocka_unit_test(short_of_fds_it_leaves_nothing_open),
		cmocka_unit_test(a_liar_gets_an_error_in_each_operation),
		cmocka_unit_test(a_forked_child_goes_on_where_the_parent_was),
	};

	alarm(50);
	return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
