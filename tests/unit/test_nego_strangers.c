/* SPDX-License-Identifier: MIT */
/* Whoever else reaches the name of an offer, or stands on it: dropped, bounded, and never in the way of the true peer. */
#include "tests/unit/nego_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringbuf/segment.h"

/* The peer still gets through after whatever happened. */
static void link_up(void)
{
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
}

static int good_segment(void)
{
	struct segment seg;
	int fd = segment_create(&seg, 4096);

	assert_true(fd >= 0);
	segment_close(&seg);
	return fd;
}

static int plain_memfd(size_t size, unsigned int seals)
{
	int fd = (int)syscall(SYS_memfd_create, "test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* What the stranger hears: the verdict's code, -1 for a closed link without a word, -2 if nothing came. */
static int verdict_of(int link)
{
	uint8_t wire[256];
	struct nego_verdict_msg v;
	ssize_t n = recv(link, wire, sizeof(wire), MSG_DONTWAIT);

	if (n <= 0)
		return n < 0 && errno == EAGAIN ? -2 : -1;
	assert_int_equal(nego_verdict_decode(&v, wire, (size_t)n), 0);
	return (int)v.verdict;
}

enum { FDS_NONE = -1, FDS_GOOD = -2, FDS_TWO = -3, FDS_SIX = -4, FDS_PIPE = -5, FDS_NO_SEALS = -6, FDS_SHORT = -7, FDS_ZERO = -8 };

static size_t attach_fds(int what, int fds[8])
{
	size_t nr = what == FDS_NONE ? 0 : what == FDS_TWO ? 2 : what == FDS_SIX ? 6 : 1;
	int pipefd[2];

	for (size_t i = 0; i < nr; i++) {
		switch (what) {
		case FDS_PIPE:
			assert_int_equal(pipe(pipefd), 0);
			close(pipefd[1]);
			fds[i] = pipefd[0];
			break;
		case FDS_NO_SEALS:
			fds[i] = plain_memfd(SEGMENT_BYTES(4096), 0);
			break;
		case FDS_SHORT:
			fds[i] = plain_memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
			break;
		case FDS_ZERO:
			fds[i] = plain_memfd(SEGMENT_BYTES(4096), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
			break;
		default:
			fds[i] = good_segment();
		}
	}
	return nr;
}

static void an_impostor_of_the_same_user_is_refused_and_the_offer_stands(void **state)
{
	static const struct {
		const char *name;
		int fds;
		int flip;	/* this byte of the HELLO is changed; -1: none */
		int len;	/* 0: as it should be */
		int ring;	/* 0: 4096 */
		enum reason why;
	} rows[] = {
		{ "another magic", FDS_GOOD, 0, 0, 0, REASON_BAD_HELLO },
		{ "another version", FDS_GOOD, 4, 0, 0, REASON_BAD_HELLO },
		{ "a verdict's type", FDS_GOOD, 6, 0, 0, REASON_BAD_HELLO },
		{ "a lying length", FDS_GOOD, 8, 0, 0, REASON_BAD_HELLO },
		{ "a reserved field", FDS_GOOD, 130, 0, 0, REASON_BAD_HELLO },
		{ "another port", FDS_GOOD, 18, 0, 0, REASON_BAD_HELLO },
		{ "another address", FDS_GOOD, 27, 0, 0, REASON_BAD_HELLO },
		{ "another segment size", FDS_GOOD, 104, 0, 0, REASON_BAD_HELLO },
		{ "more read than was written", FDS_GOOD, 112, 0, 0, REASON_BAD_HELLO },
		{ "truncated", FDS_GOOD, -1, 143, 0, REASON_BAD_HELLO },
		{ "one byte", FDS_NONE, -1, 1, 0, REASON_BAD_HELLO },
		{ "oversized", FDS_GOOD, -1, 145, 0, REASON_BAD_HELLO },
		{ "huge", FDS_GOOD, -1, 60000, 0, REASON_BAD_HELLO },
		{ "no descriptor", FDS_NONE, -1, 0, 0, REASON_BAD_HELLO },
		{ "two descriptors", FDS_TWO, -1, 0, 0, REASON_BAD_HELLO },
		{ "more descriptors than there is room for", FDS_SIX, -1, 0, 0, REASON_BAD_HELLO },
		{ "a ring too small", FDS_GOOD, -1, 0, 2048, REASON_BAD_HELLO },
		{ "a ring of no power of two", FDS_GOOD, -1, 0, 12288, REASON_BAD_HELLO },
		{ "a pipe", FDS_PIPE, -1, 0, 0, REASON_BAD_SEGMENT },
		{ "a memfd without seals", FDS_NO_SEALS, -1, 0, 0, REASON_BAD_SEGMENT },
		{ "a memfd that is too short", FDS_SHORT, -1, 0, 0, REASON_BAD_SEGMENT },
		{ "an empty memfd", FDS_ZERO, -1, 0, 0, REASON_BAD_SEGMENT },
		{ "another ring size than the segment's", FDS_GOOD, -1, 0, 8192, REASON_BAD_SEGMENT },
	};
	static uint8_t wire[65536];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int link, fds[8], verdict;
		size_t nr;

		bench_open(V4);
		poke_connector();
		struct nego_hello h = honest_hello(rows[i].ring ? (uint32_t)rows[i].ring : 4096);

		memset(wire, 0, sizeof(wire));
		nego_hello_encode(wire, &h);
		if (rows[i].flip >= 0)
			wire[rows[i].flip] ^= 1;
		nr = attach_fds(rows[i].fds, fds);
		link = stranger_dial();
		stranger_send(link, wire, rows[i].len ? (size_t)rows[i].len : NEGO_HELLO_SIZE, fds, nr);
		for (size_t k = 0; k < nr; k++)
			close(fds[k]);
		poke_connector();
		verdict = verdict_of(link);
		if (verdict != NEGO_MALFORMED)
			fail_msg("%s: heard %d", rows[i].name, verdict);
		if (bench.connector.reason != rows[i].why)
			fail_msg("%s: reason %d", rows[i].name, bench.connector.reason);
		close(link);
		link_up();
		bench_close();
	}
}

static void one_that_hangs_up_is_forgotten(void **state)
{
	bench_open(V4);
	poke_connector();
	close(stranger_dial());
	poke_connector();
	assert_int_equal(seen.pins, 0);
	link_up();
	bench_close();
}

static void silent_links_do_not_pile_up(void **state)
{
	int links[12];

	bench_open(V4);
	poke_connector();
	for (int i = 0; i < 12; i++) {
		links[i] = stranger_dial();
		poke_connector();
	}
	/* The oldest have been turned away, four may still speak. */
	for (int i = 0; i < 12; i++)
		assert_int_equal(verdict_of(links[i]), i < 8 ? -1 : -2);
	link_up();
	for (int i = 0; i < 12; i++)
		close(links[i]);
	bench_close();
}

static void sixteen_strangers_end_an_offer(void **state)
{
	bench_open(V4);
	poke_connector();
	for (int i = 0; i < 16; i++) {
		int link = stranger_dial();

		assert_int_equal(seen.pins, 0);
		stranger_send(link, "what?", 5, NULL, 0);
		poke_connector();
		close(link);
	}
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_BAD_HELLO);
	bench_close();
}

/* Runs `fn` in a child of another user, which ends when its standing on the name is no longer needed. */
static pid_t other_user(int (*fn)(void), int *until)
{
	int up[2], down[2];
	char byte = 0;
	pid_t pid;

	assert_int_equal(pipe(up), 0);
	assert_int_equal(pipe(down), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(down[1]);
		if (setuid(65534) || fn() < 0 || write(up[1], &byte, 1) != 1)
			_exit(1);
		/* Until the test closes its end, or dies. */
		_exit(read(down[0], &byte, 1) == 0 ? 0 : 2);
	}
	close(up[1]);
	close(down[0]);
	assert_int_equal(read(up[0], &byte, 1), 1);
	close(up[0]);
	*until = down[1];
	return pid;
}

static void other_user_ends(pid_t pid, int until)
{
	int status;

	close(until);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int dial_and_greet(void)
{
	struct nego_hello h = honest_hello(4096);
	uint8_t wire[NEGO_HELLO_SIZE];
	int fds[8], link = stranger_dial();
	size_t nr = attach_fds(FDS_GOOD, fds);

	nego_hello_encode(wire, &h);
	stranger_send(link, wire, sizeof(wire), fds, nr);
	return link;
}

static void a_dialler_of_another_user_is_turned_away(void **state)
{
	int until;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	bench_open(V4);
	poke_connector();
	pid = other_user(dial_and_greet, &until);
	poke_connector();
	assert_int_equal(seen.links, 0);
	assert_int_equal(bench.connector.reason, REASON_PEER_UID);
	link_up();
	other_user_ends(pid, until);
	bench_close();
}

static void a_squatter_of_another_user_hears_nothing(void **state)
{
	int until;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	bench_open(V4);
	pid = other_user(stranger_listen, &until);
	poke_acceptor();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_PEER_UID);
	seen.pins = 0;
	poke_connector();
	assert_int_equal(seen.pins, 0);
	assert_int_equal(bench.connector.reason, REASON_NAME_TAKEN);
	other_user_ends(pid, until);
	poke_connector();
	assert_int_equal(bench.connector.nego.phase, NEGO_OFFERED);
	bench_close();
}

/* A squatter of our own user on the connector's name: answers what it likes, with the acceptor's segment in its hands. */
static void an_answer_that_is_not_one_pins_the_acceptor(void **state)
{
	static const struct { const char *name; int flip, len, verdict; enum reason why; } rows[] = {
		{ "another magic", 0, 0, NEGO_AGREE, REASON_BAD_HELLO },
		{ "another version", 4, 0, NEGO_AGREE, REASON_BAD_HELLO },
		{ "a reserved field", 79, 0, NEGO_AGREE, REASON_BAD_HELLO },
		{ "truncated", -1, 79, NEGO_AGREE, REASON_BAD_HELLO },
		{ "oversized", -1, 81, NEGO_AGREE, REASON_BAD_HELLO },
		{ "more read than was written", 64, 0, NEGO_AGREE, REASON_BAD_HELLO },
		{ "malformed", -1, 0, NEGO_MALFORMED, REASON_PEER_REFUSED },
		{ "counts", -1, 0, NEGO_COUNTS, REASON_PEER_REFUSED },
		{ "resources", -1, 0, NEGO_RESOURCES, REASON_PEER_REFUSED },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t wire[256] = { 0 }, hello[NEGO_HELLO_SIZE];
		struct nego_verdict_msg v = { .verdict = (enum nego_verdict)rows[i].verdict };
		int listener, link;

		bench_open(V4);
		listener = stranger_listen();
		poke_acceptor();
		assert_int_equal(bench.acceptor.nego.phase, NEGO_DIALLED);
		link = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		assert_int_equal(recv(link, hello, sizeof(hello), 0), sizeof(hello));
		v.self = honest_hello(4096).self;
		nego_verdict_encode(wire, &v);
		if (rows[i].flip >= 0)
			wire[rows[i].flip] ^= 1;
		stranger_send(link, wire, rows[i].len ? (size_t)rows[i].len : NEGO_VERDICT_SIZE, NULL, 0);
		poke_acceptor();
		if (seen.pins != 1 || seen.why != rows[i].why)
			fail_msg("%s: %d pins, reason %d", rows[i].name, seen.pins, (int)seen.why);
		assert_int_equal(seen.adopts, seen.disowns);
		close(link);
		close(listener);
		bench_close();
	}
}

static void an_answer_with_a_descriptor_is_refused_and_leaks_none(void **state)
{
	struct nego_verdict_msg v = { .verdict = NEGO_AGREE };
	uint8_t wire[NEGO_VERDICT_SIZE];
	int listener, link, fds[8];

	bench_open(V4);
	listener = stranger_listen();
	poke_acceptor();
	link = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	v.self = honest_hello(4096).self;
	nego_verdict_encode(wire, &v);
	attach_fds(FDS_PIPE, fds);
	stranger_send(link, wire, sizeof(wire), fds, 1);
	close(fds[0]);
	poke_acceptor();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_BAD_HELLO);
	close(link);
	close(listener);
	bench_close();
}

static void a_listener_that_hangs_up_is_dialled_a_few_times_and_no_more(void **state)
{
	int listener, dials = 0;

	bench_open(V4);
	listener = stranger_listen();
	for (int i = 0; i < 100 && !seen.pins; i++) {
		int link;

		poke_acceptor();
		link = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (link >= 0) {
			dials++;
			close(link);
		}
	}
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_PEER_REFUSED);
	assert_in_range(dials, 2, 10);
	close(listener);
	bench_close();
}

static void a_peer_that_never_answers_is_given_up(void **state)
{
	int listener;

	bench_open(V4);
	listener = stranger_listen();
	for (unsigned int i = 0; !seen.pins && i < 1000000000; i++)
		poke_acceptor();
	assert_int_equal(seen.why, REASON_PEER_SILENT);
	assert_int_equal(seen.adopts, seen.disowns);
	close(listener);
	bench_close();
}

static void a_dialler_that_dies_after_its_hello_leaves_the_offer_standing(void **state)
{
	bench_open(V4);
	poke_connector();
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.phase, NEGO_DIALLED);
	nego_leave(&bench.acceptor);
	poke_connector();
	assert_int_equal(seen.links, 0);
	assert_int_equal(seen.adopts, seen.disowns);
	link_up();
	bench_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_impostor_of_the_same_user_is_refused_and_the_offer_stands),
		cmocka_unit_test(one_that_hangs_up_is_forgotten),
		cmocka_unit_test(silent_links_do_not_pile_up),
		cmocka_unit_test(sixteen_strangers_end_an_offer),
		cmocka_unit_test(a_dialler_of_another_user_is_turned_away),
		cmocka_unit_test(a_squatter_of_another_user_hears_nothing),
		cmocka_unit_test(an_answer_that_is_not_one_pins_the_acceptor),
		cmocka_unit_test(an_answer_with_a_descriptor_is_refused_and_leaks_none),
		cmocka_unit_test(a_listener_that_hangs_up_is_dialled_a_few_times_and_no_more),
		cmocka_unit_test(a_peer_that_never_answers_is_given_up),
		cmocka_unit_test(a_dialler_that_dies_after_its_hello_leaves_the_offer_standing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
