/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

#include "ring_fixture.h"
#include "ringbuf/doorbell.h"
#include "ringbuf/memfd.h"
#include "ringbuf/stats.h"

#define NR_SLOTS 8

static const struct stats_identity some_identity = {
	.fd = 7, .family = AF_INET6, .local_port = 6379, .peer_port = 40112,
	.local_addr = { 0x20, 0x01, 0x0d, 0xb8, [15] = 1 }, .peer_addr = { [15] = 1 },
};

struct both {
	struct stats_writer writer;
	struct stats_view view;
	int fd;
};

static void open_both(struct both *both)
{
	both->fd = stats_create(&both->writer, "some-program", NR_SLOTS);
	assert_true(both->fd >= 0);
	assert_int_equal(stats_attach(&both->view, both->fd), 0);
}

static void close_both(struct both *both)
{
	stats_detach(&both->view);
	stats_abandon(&both->writer);
	close(both->fd);
}

static void a_reader_sees_the_process(void **state)
{
	struct both both;

	open_both(&both);
	assert_int_equal(both.view.nr_slots, NR_SLOTS);
	assert_int_equal(both.view.pid, getpid());
	assert_true(both.view.start_time > 0);
	assert_int_equal(both.view.start_time, stats_start_time(getpid()));
	assert_string_equal(both.view.program, "some-program");
	close_both(&both);
}

static void a_reader_finds_it_by_its_link(void **state)
{
	struct both both;
	char path[64], link[64] = "";
	struct stats_view view;
	int fd;

	open_both(&both);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", both.fd);
	assert_true(readlink(path, link, sizeof(link) - 1) > 0);
	assert_string_equal(link, STATS_MEMFD_LINK);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(stats_attach(&view, fd), 0);
	stats_detach(&view);
	close(fd);
	close_both(&both);
}

static void a_slot_is_seen_while_it_is_open(void **state)
{
	struct both both;
	struct stats_connection seen;
	struct stats_slot *slot;

	open_both(&both);
	assert_false(stats_read(&both.view, 3, &seen));
	slot = stats_slot_open(&both.writer, 3, &some_identity);
	assert_non_null(slot);
	assert_true(stats_read(&both.view, 3, &seen));
	assert_memory_equal(&seen.identity, &some_identity, sizeof(some_identity));
	assert_int_equal(seen.tx_road, ROAD_TCP);

	stats_set(slot, tx_road, ROAD_SHM);
	stats_set(slot, reason, REASON_PEER_SILENT);
	stats_set(slot, tcp_tx_bytes, UINT64_C(1) << 40);
	stats_set(slot, ring_rx_bytes, UINT64_MAX);
	stats_add(slot, tcp_rx_bytes, 5);
	stats_add(slot, tcp_rx_bytes, 6);
	stats_add(slot, nr_switches, 1);
	stats_slot_set_fd(slot, 12);
	assert_true(stats_read(&both.view, 3, &seen));
	assert_int_equal(seen.identity.fd, 12);
	assert_string_equal(stats_road_word(seen.tx_road), "shm");
	assert_string_equal(stats_road_word(seen.rx_road), "tcp");
	assert_string_equal(reason_word(seen.reason), "peer-silent");
	assert_true(seen.tcp_tx_bytes == UINT64_C(1) << 40 && seen.ring_rx_bytes == UINT64_MAX);
	assert_int_equal(seen.tcp_rx_bytes, 11);
	assert_int_equal(seen.nr_switches, 1);

	stats_slot_close(slot);
	assert_false(stats_read(&both.view, 3, &seen));
	slot = stats_slot_open(&both.writer, 3, &some_identity);
	assert_true(stats_read(&both.view, 3, &seen));
	assert_int_equal(seen.tcp_rx_bytes, 0);
	close_both(&both);
}

/* The writer maps them where they come into use, the reader all at once. */
static void slots_far_from_each_other_are_seen(void **state)
{
	static const uint32_t indices[] = { 0, 1, STATS_STEP_SLOTS - 1, STATS_STEP_SLOTS, 3 * STATS_STEP_SLOTS + 5, 5 * STATS_STEP_SLOTS - 1 };
	struct stats_writer writer;
	struct stats_view view;
	int fd = stats_create(&writer, "wide", 5 * STATS_STEP_SLOTS);

	assert_true(fd >= 0);
	assert_int_equal(stats_attach(&view, fd), 0);
	for (size_t i = 0; i < sizeof(indices) / sizeof(indices[0]); i++) {
		struct stats_identity identity = some_identity;
		struct stats_connection seen;
		struct stats_slot *slot;

		identity.fd = 100 + (int)i;
		slot = stats_slot_open(&writer, indices[i], &identity);
		assert_non_null(slot);
		assert_ptr_equal(stats_slot_at(&writer, indices[i]), slot);
		assert_true(stats_read(&view, indices[i], &seen));
		assert_int_equal(seen.identity.fd, identity.fd);
	}
	assert_null(stats_slot_at(&writer, 2 * STATS_STEP_SLOTS));
	assert_null(stats_slot_open(&writer, 5 * STATS_STEP_SLOTS, &some_identity));
	stats_detach(&view);
	stats_abandon(&writer);
	close(fd);
}

static void who_may_open_it_may_ask(void **state)
{
	struct both both;
	struct stats_view asker;
	struct stats_connection seen;
	struct stats_slot *slot;
	struct bell_address data = { .key = 7 }, room = { .key = 8 };
	int data_bell = bell_create(data.key, &data.port), room_bell = bell_create(room.key, &room.port), read_only;
	char path[64];

	open_both(&both);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", both.fd);
	read_only = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(stats_attach_to_ask(&asker, read_only), -EACCES);
	close(read_only);
	assert_int_equal(stats_attach_to_ask(&asker, both.fd), 0);
	assert_non_null(stats_slot_open(&both.writer, 2, &some_identity));
	slot = stats_slot_open(&both.writer, 3, &some_identity);
	assert_int_equal(peer_read_u32(&both.writer.header->any_off), 0);

	stats_ask_one(&asker, 3, true);
	assert_true(peer_read_u32(&both.writer.header->any_off) && !stats_all_off(&both.view));
	assert_true(stats_read(&both.view, 3, &seen) && seen.off);
	assert_true(stats_read(&both.view, 2, &seen) && !seen.off);
	stats_ask_all(&asker, true);
	assert_true(peer_read_u32(&both.writer.header->any_off) && stats_all_off(&both.view));
	assert_true(stats_read(&both.view, 3, &seen) && !seen.off);
	stats_ask_one(&asker, 3, false);
	assert_int_not_equal(peer_read_u32(&both.writer.header->any_off), 0);
	stats_ask_all(&asker, false);
	assert_int_equal(peer_read_u32(&both.writer.header->any_off), 0);

	/* Another connection in the slot was not asked. */
	stats_ask_one(&asker, 3, true);
	stats_slot_open(&both.writer, 3, &some_identity);
	assert_true(stats_read(&both.view, 3, &seen) && !seen.off);

	assert_int_equal(stats_ring(&asker, 3), 0);
	assert_int_equal(bell_drain(data_bell) + bell_drain(room_bell), 0);
	stats_set(slot, data_key, data.key);
	stats_set(slot, data_port, data.port);
	stats_set(slot, room_key, room.key);
	stats_set(slot, room_port, room.port);
	assert_int_equal(stats_ring(&asker, 3), 0);
	assert_int_equal(bell_drain(data_bell), 1);
	assert_int_equal(bell_drain(room_bell), 1);
	close(data_bell);
	close(room_bell);
	stats_detach(&asker);
	close_both(&both);
}

static void a_missing_slot_or_segment_costs_nothing(void **state)
{
	struct stats_writer none = { 0 };
	struct both both;
	struct stats_connection seen;

	assert_null(stats_slot_open(&none, 0, &some_identity));
	stats_set((struct stats_slot *)NULL, tcp_tx_bytes, 1);
	stats_add((struct stats_slot *)NULL, tcp_tx_bytes, 1);
	stats_slot_set_fd(NULL, 1);
	stats_slot_close(NULL);
	stats_abandon(&none);
	open_both(&both);
	assert_null(stats_slot_open(&both.writer, NR_SLOTS, &some_identity));
	assert_null(stats_slot_open(&both.writer, UINT32_MAX, &some_identity));
	assert_false(stats_read(&both.view, NR_SLOTS, &seen));
	assert_false(stats_read(&both.view, UINT32_MAX, &seen));
	close_both(&both);
	assert_int_equal(stats_create(&none, "x", 0), -EINVAL);
	assert_int_equal(stats_create(&none, "x", STATS_SLOTS_MAX + 1), -EINVAL);
}

static void words_exist_for_every_reason_and_road(void **state)
{
	uint32_t i, j;

	for (i = 0; i < NR_REASONS; i++) {
		assert_true(i == REASON_NONE || strlen(reason_word(i)) > 1);
		assert_true(strlen(reason_sentence(i)) > 1);
		for (j = 0; j < i; j++)
			assert_string_not_equal(reason_word(i), reason_word(j));
	}
	assert_string_equal(reason_word(NR_REASONS), "unknown");
	assert_string_equal(reason_sentence(UINT32_MAX), "unknown");
	assert_string_equal(stats_road_word(NR_ROADS), "unknown");
}

static const struct {
	const char *name;
	size_t offset;
	uint8_t flip;
} header_damage[] = {
	{ "magic", offsetof(struct stats_header, magic), 1 },
	{ "version", offsetof(struct stats_header, version), 1 },
	{ "header_bytes", offsetof(struct stats_header, header_bytes), 1 },
	{ "slot_bytes", offsetof(struct stats_header, slot_bytes), 1 },
	{ "no_slots", offsetof(struct stats_header, nr_slots), NR_SLOTS },
	{ "more_slots", offsetof(struct stats_header, nr_slots), 1 },
	{ "very_many_slots", offsetof(struct stats_header, nr_slots) + 3, 0x80 },
	{ "negative_pid", offsetof(struct stats_header, pid) + 3, 0x80 },
};

static void a_reader_refuses_a_damaged_header(void **state)
{
	size_t i;

	for (i = 0; i < sizeof(header_damage) / sizeof(header_damage[0]); i++) {
		struct both both;
		struct stats_view view;

		print_message("%s\n", header_damage[i].name);
		open_both(&both);
		((uint8_t *)both.writer.header)[header_damage[i].offset] ^= header_damage[i].flip;
		assert_int_equal(stats_attach(&view, both.fd), -EPROTO);
		assert_null(view.header);
		close_both(&both);
	}
}

static void a_reader_refuses_what_is_no_segment(void **state)
{
	struct stats_view view;
	int fd = open("/dev/null", O_RDONLY);

	assert_int_equal(stats_attach(&view, fd), -EPROTO);
	close(fd);
	assert_int_equal(stats_attach(&view, -1), -EPROTO);
	fd = memfd_create(STATS_MEMFD_NAME, MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 1 << 16), 0);
	assert_int_equal(stats_attach(&view, fd), -EPROTO);
	close(fd);
	fd = memfd_create_sealed(STATS_MEMFD_NAME, 100);
	assert_int_equal(stats_attach(&view, fd), -EPROTO);
	close(fd);
	fd = memfd_create_sealed(STATS_MEMFD_NAME, UINT64_C(1) << 40);
	assert_int_equal(stats_attach(&view, fd), -EPROTO);
	close(fd);
}

static void a_reader_bounds_whatever_a_slot_holds(void **state)
{
	struct both both;
	unsigned seed = 99;
	int round, nr_seen = 0;

	open_both(&both);
	for (round = 0; round < 20000; round++) {
		uint8_t *bytes = (uint8_t *)stats_slot_at(&both.writer, 0);
		struct stats_connection seen;
		int i;

		stats_slot_open(&both.writer, 0, &some_identity);
		for (i = 0; i < (round & 7); i++)
			bytes[(size_t)rand_r(&seed) % sizeof(struct stats_slot)] = (uint8_t)rand_r(&seed);
		if (!stats_read(&both.view, 0, &seen))
			continue;
		nr_seen++;
		assert_true(seen.identity.family == AF_INET || seen.identity.family == AF_INET6);
		assert_true(seen.identity.fd >= 0);
		assert_true(seen.tx_road < NR_ROADS && seen.rx_road < NR_ROADS);
		assert_true(seen.reason <= NR_REASONS);
		assert_non_null(reason_word(seen.reason));
	}
	assert_true(nr_seen > 1000);
	close_both(&both);
}

static void a_program_name_is_cut_and_cleaned(void **state)
{
	struct stats_writer writer;
	struct stats_view view;
	char name[200];
	int fd;

	memset(name, 'x', sizeof(name));
	name[0] = '\x1b';
	name[1] = '\n';
	name[2] = (char)0xff;
	name[sizeof(name) - 1] = '\0';
	fd = stats_create(&writer, name, 1);
	assert_int_equal(stats_attach(&view, fd), 0);
	assert_int_equal(strlen(view.program), STATS_PROGRAM_BYTES - 1);
	assert_memory_equal(view.program, "???xxx", 6);
	stats_detach(&view);
	/* The end is taken away behind the reader's back. */
	store_relaxed(&writer.header->program[STATS_PROGRAM_BYTES - 1], 'y');
	assert_int_equal(stats_attach(&view, fd), 0);
	assert_int_equal(strlen(view.program), STATS_PROGRAM_BYTES - 1);
	stats_detach(&view);
	stats_abandon(&writer);
	close(fd);
}

/* A slot that is closed and opened for another connection all the time is never seen as a mixture of two. */
static _Atomic bool changing_over;

static void *change_slot(void *arg)
{
	struct stats_writer *writer = arg;
	unsigned i;

	for (i = 0; i < 200000; i++) {
		struct stats_identity identity = { .fd = (int)(i & 0xff), .family = AF_INET };

		identity.local_port = identity.peer_port = (uint16_t)identity.fd;
		memset(identity.local_addr, identity.fd, sizeof(identity.local_addr));
		memset(identity.peer_addr, identity.fd, sizeof(identity.peer_addr));
		stats_slot_close(stats_slot_open(writer, 0, &identity));
		stats_slot_open(writer, 0, &identity);
	}
	store_relaxed(&changing_over, true);
	return NULL;
}

static void a_reader_sees_no_mixture(void **state)
{
	struct both both;
	pthread_t thread;
	int i;

	open_both(&both);
	store_relaxed(&changing_over, false);
	assert_int_equal(pthread_create(&thread, NULL, change_slot, &both.writer), 0);
	while (!load_relaxed(&changing_over)) {
		struct stats_connection seen;

		if (!stats_read(&both.view, 0, &seen))
			continue;
		assert_int_equal(seen.identity.local_port, seen.identity.fd);
		assert_int_equal(seen.identity.peer_port, seen.identity.fd);
		for (i = 0; i < 16; i++) {
			assert_int_equal(seen.identity.local_addr[i], seen.identity.fd);
			assert_int_equal(seen.identity.peer_addr[i], seen.identity.fd);
		}
	}
	pthread_join(thread, NULL);
	close_both(&both);
}

static void start_times_tell_processes_apart(void **state)
{
	pid_t pid = fork_bound();
	uint64_t start;

	if (!pid)
		_exit(0);
	start = stats_start_time(pid);
	assert_true(start >= stats_start_time(getpid()));
	assert_int_equal(exit_status(pid), 0);
	assert_int_equal(stats_start_time(pid), 0);
	assert_int_equal(stats_start_time(0), 0);
	assert_int_equal(stats_start_time(-5), 0);
}

static void counts_columns_behind_a_strange_command_name(void **state)
{
	char before[16];
	uint64_t start = stats_start_time(getpid());

	prctl(PR_GET_NAME, before);
	prctl(PR_SET_NAME, "a) R 1 (b) 2");
	assert_int_equal(stats_start_time(getpid()), start);
	prctl(PR_SET_NAME, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_sees_the_process),
		cmocka_unit_test(a_reader_finds_it_by_its_link),
		cmocka_unit_test(a_slot_is_seen_while_it_is_open),
		cmocka_unit_test(slots_far_from_each_other_are_seen),
		cmocka_unit_test(who_may_open_it_may_ask),
		cmocka_unit_test(a_missing_slot_or_segment_costs_nothing),
		cmocka_unit_test(words_exist_for_every_reason_and_road),
		cmocka_unit_test(a_reader_refuses_a_damaged_header),
		cmocka_unit_test(a_reader_refuses_what_is_no_segment),
		cmocka_unit_test(a_reader_bounds_whatever_a_slot_holds),
		cmocka_unit_test(a_program_name_is_cut_and_cleaned),
		cmocka_unit_test(a_reader_sees_no_mixture),
		cmocka_unit_test(start_times_tell_processes_apart),
		cmocka_unit_test(counts_columns_behind_a_strange_command_name),
	};

	alarm(50);
	return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
