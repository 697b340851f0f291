/* SPDX-License-Identifier: MIT */
/* Sleepers whose bell the kernel refuses to ring. */
#include <errno.h>

#include "ring_fixture.h"
#include "unheard.h"

/* In a child, since a filter is for ever: what is wrong by number, 0: nothing. */
static int bell_refused(struct pair *pair, unsigned error)
{
	struct ring_rx *rx = &pair->attacher.rx;
	struct ring_bells *bells = &pair->creator.tx.bells;
	int bell = rx->bells.bell_fd, other = dup(bells->bell_fd);

	if (other < 0 || ring_rx_sleep_begin(rx) || !refuse_rings_from(bells->bell_fd, error))
		return 1;
	if (!(send_bytes(pair, 1) & RING_UNHEARD) || readable(bell, 0))
		return 2;
	if (rx_word(pair) != (WAKE_ARMED | WAKE_SLEEPER))
		return 3;
	bells->bell_fd = other;
	if (send_bytes(pair, 1) || !readable(bell, 0))
		return 4;
	ring_rx_sleep_end(rx, true);
	return rx_word(pair) == WAKE_AWAKE ? 0 : 5;
}

static void a_bell_that_could_not_be_rung_is_rung_by_the_next_publication(void **state)
{
	static const unsigned errors[] = { ENOBUFS, ENOMEM, EPERM };

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		pid_t pid = fork_bound();

		if (!pid)
			_exit(bell_refused(pair, errors[i]));
		assert_int_equal(exit_status(pid), 0);
		pair_close(pair);
	}
}

/* The same for room. */
static int room_bell_refused(struct pair *pair)
{
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_bells *bells = &pair->attacher.rx.bells;
	int other = dup(bells->bell_fd);

	send_bytes(pair, FIXTURE_RING_BYTES);
	if (other < 0 || ring_tx_sleep_begin(tx, 1) || !refuse_rings_from(bells->bell_fd, ENOBUFS))
		return 1;
	take_bytes(pair, QUARTER);
	if (tx_word(pair) != (WAKE_ARMED | WAKE_SLEEPER) || readable(tx->bells.bell_fd, 0))
		return 2;
	bells->bell_fd = other;
	take_bytes(pair, QUARTER);
	if (tx_word(pair) != WAKE_SLEEPER || !readable(tx->bells.bell_fd, 0))
		return 3;
	ring_tx_sleep_end(tx, true);
	return tx_word(pair) == WAKE_AWAKE ? 0 : 4;
}

static void so_is_a_senders_by_the_next_quarter(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	pid_t pid = fork_bound();

	if (!pid)
		_exit(room_bell_refused(pair));
	assert_int_equal(exit_status(pid), 0);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bell_that_could_not_be_rung_is_rung_by_the_next_publication),
		cmocka_unit_test(so_is_a_senders_by_the_next_quarter),
	};

	alarm(50);
	return cmocka_run_group_tests_name("unheard", tests, NULL, NULL);
}
