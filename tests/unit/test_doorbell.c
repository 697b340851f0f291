/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include "ring_fixture.h"

struct bell {
	int fd;
	struct bell_address address;
};

static struct bell bell_open(void)
{
	struct bell bell = { 0 };

	assert_int_equal(bell_key(&bell.address.key), 0);
	bell.fd = bell_create(bell.address.key, &bell.address.port);
	assert_true(bell.fd >= 0);
	assert_int_not_equal(bell.address.port, 0);
	return bell;
}

static void is_readable_while_rung(void **state)
{
	struct bell sleeper = bell_open(), ringer = bell_open();

	assert_false(readable(sleeper.fd, 0));
	assert_int_equal(bell_ring(ringer.fd, &sleeper.address), 0);
	assert_true(readable(sleeper.fd, 0));
	assert_false(readable(ringer.fd, 0));
	assert_int_equal(bell_drain(sleeper.fd), 1);
	assert_false(readable(sleeper.fd, 0));
	assert_int_equal(bell_drain(sleeper.fd), 0);
	close(sleeper.fd);
	close(ringer.fd);
}

static void can_ring_itself(void **state)
{
	struct bell bell = bell_open();

	assert_int_equal(bell_ring(bell.fd, &bell.address), 0);
	assert_int_equal(bell_drain(bell.fd), 1);
	close(bell.fd);
}

static void is_non_blocking_and_closed_by_exec(void **state)
{
	struct bell bell = bell_open();

	assert_int_equal(fcntl(bell.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(fcntl(bell.fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	close(bell.fd);
}

static void leaves_the_number_of_the_process_to_the_program(void **state)
{
	struct bell first = bell_open(), second = bell_open();
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_pid = (uint32_t)getpid() };
	int own = socket(AF_NETLINK, SOCK_RAW, NETLINK_USERSOCK);

	assert_int_equal(bind(own, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(own);
	close(first.fd);
	close(second.fd);
}

static void does_not_hear_who_lacks_the_key(void **state)
{
	struct bell sleeper = bell_open(), stranger = bell_open();
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_pid = sleeper.address.port };
	uint8_t message[64] = { 0 };
	size_t len;
	unsigned byte;

	for (byte = 0; byte < 64; byte++) {
		struct bell_address guess = sleeper.address;

		guess.key ^= UINT64_C(1) << byte;
		assert_int_equal(bell_ring(stranger.fd, &guess), 0);
	}
	/* Short ones hold only a part of the key. */
	memcpy(message, &sleeper.address.key, 8);
	for (len = 0; len < 8; len++)
		sendto(stranger.fd, message, len, MSG_DONTWAIT, (struct sockaddr *)&addr, sizeof(addr));
	assert_false(readable(sleeper.fd, 0));
	assert_int_equal(bell_drain(sleeper.fd), 0);
	/* And with the key it is heard, whatever follows. */
	assert_true(sendto(stranger.fd, message, sizeof(message), 0, (struct sockaddr *)&addr, sizeof(addr)) > 0);
	assert_int_equal(bell_drain(sleeper.fd), 1);
	close(sleeper.fd);
	close(stranger.fd);
}

static void counts_as_rung_when_flooded(void **state)
{
	struct bell sleeper = bell_open(), ringer = bell_open();
	uint64_t full = load_relaxed(&bell_counts.full), rings = load_relaxed(&bell_counts.rings);
	int i;

	for (i = 0; i < 1000; i++)
		assert_int_equal(bell_ring(ringer.fd, &sleeper.address), 0);
	assert_int_equal(load_relaxed(&bell_counts.rings) - rings, 1000);
	assert_true(load_relaxed(&bell_counts.full) - full > 900);
	assert_true(readable(sleeper.fd, 0));
	assert_in_range(bell_drain(sleeper.fd), 1, 99);
	assert_false(readable(sleeper.fd, 0));
	assert_int_equal(bell_ring(ringer.fd, &sleeper.address), 0);
	assert_true(readable(sleeper.fd, 0));
	close(sleeper.fd);
	close(ringer.fd);
}

static void draining_ends_while_somebody_rings_on(void **state)
{
	struct bell sleeper = bell_open(), ringer = bell_open();
	pid_t pid = fork_bound();
	int i;

	if (!pid)
		for (;;)
			bell_ring(ringer.fd, &sleeper.address);
	assert_true(readable(sleeper.fd, 20000));
	for (i = 0; i < 1000; i++)
		assert_in_range(bell_drain(sleeper.fd), 0, 64);
	kill(pid, SIGKILL);
	assert_int_equal(exit_status(pid), 1000 + SIGKILL);
	close(sleeper.fd);
	close(ringer.fd);
}

static void says_when_nobody_is_there(void **state)
{
	struct bell sleeper = bell_open(), ringer = bell_open();
	struct bell_address nobody = { .key = sleeper.address.key };
	uint64_t rings = load_relaxed(&bell_counts.rings);

	close(sleeper.fd);
	assert_int_equal(bell_ring(ringer.fd, &sleeper.address), -ECONNREFUSED);
	assert_int_equal(bell_ring(ringer.fd, &nobody), 0);
	assert_int_equal(bell_ring(-1, &ringer.address), 0);
	assert_int_equal(load_relaxed(&bell_counts.rings) - rings, 1);
	close(ringer.fd);
}

static void wakes_another_process(void **state)
{
	struct bell sleeper = bell_open(), ringer = bell_open();
	pid_t pid = fork_bound();

	if (!pid)
		_exit(readable(sleeper.fd, 20000) ? 0 : 1);
	assert_int_equal(bell_ring(ringer.fd, &sleeper.address), 0);
	assert_int_equal(exit_status(pid), 0);
	close(sleeper.fd);
	close(ringer.fd);
}

static void keys_and_ports_differ(void **state)
{
	struct bell a = bell_open(), b = bell_open();

	assert_true(a.address.key != b.address.key);
	assert_int_not_equal(a.address.port, b.address.port);
	close(a.fd);
	close(b.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_readable_while_rung),
		cmocka_unit_test(can_ring_itself),
		cmocka_unit_test(is_non_blocking_and_closed_by_exec),
		cmocka_unit_test(leaves_the_number_of_the_process_to_the_program),
		cmocka_unit_test(does_not_hear_who_lacks_the_key),
		cmocka_unit_test(counts_as_rung_when_flooded),
		cmocka_unit_test(draining_ends_while_somebody_rings_on),
		cmocka_unit_test(says_when_nobody_is_there),
		cmocka_unit_test(wakes_another_process),
		cmocka_unit_test(keys_and_ports_differ),
	};

	alarm(50);
	return cmocka_run_group_tests_name("doorbell", tests, NULL, NULL);
}
