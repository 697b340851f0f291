/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>

#include "ring_fixture.h"
#include "ringbuf/mapped.h"
#include "ringbuf/segment.h"

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void rounds_a_wanted_size_to_a_possible_one(void **state)
{
	static const struct {
		uint64_t wanted;
		uint32_t got;
	} rows[] = {
		{ 0, 4096 },
		{ 1, 4096 },
		{ 4096, 4096 },
		{ 4097, 8192 },
		{ 65536, 65536 },
		{ 65537, 131072 },
		{ (1 << 30) - 1, 1 << 30 },
		{ 1 << 30, 1 << 30 },
		{ (UINT64_C(1) << 30) + 1, 1 << 30 },
		{ UINT64_C(1) << 32, 1 << 30 },
		{ UINT64_MAX, 1 << 30 },
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(segment_ring_bytes(rows[i].wanted), rows[i].got);
}

static void is_sealed_and_of_the_right_size(void **state)
{
	struct segment seg;
	int fd = segment_create(&seg, 65536);

	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(lseek(fd, 0, SEEK_END), SEGMENT_BYTES(65536));
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(ftruncate(fd, 1 << 20), -1);
	close(fd);
	segment_close(&seg);
	assert_null(seg.base);
	segment_close(&seg);
}

static void is_the_same_memory_at_both_ends(void **state)
{
	struct segment mine, theirs;
	int fd = segment_create(&mine, 4096);
	enum lane_index lane;

	assert_int_equal(segment_attach(&theirs, fd, 4096), 0);
	close(fd);
	for (lane = 0; lane < NR_LANES; lane++) {
		segment_ring(&mine, lane)[4095] = (uint8_t)(0x40 + lane);
		segment_overflow(&mine, lane)[OVERFLOW_BYTES(4096) - 1] = (uint8_t)(0x50 + lane);
		peer_publish_u64(&segment_ctl(&mine, lane)->rx.head_pos, 77 + lane);
	}
	for (lane = 0; lane < NR_LANES; lane++) {
		assert_int_equal(segment_ring(&theirs, lane)[4095], 0x40 + lane);
		assert_int_equal(segment_overflow(&theirs, lane)[OVERFLOW_BYTES(4096) - 1], 0x50 + lane);
		assert_int_equal(peer_read_u64(&segment_ctl(&theirs, lane)->rx.head_pos), 77 + lane);
		assert_int_equal(peer_read_u64(&segment_front(&theirs, lane)->tail_pos), 0);
	}
	segment_close(&mine);
	segment_close(&theirs);
}

static void refuses_to_create_odd_sizes(void **state)
{
	static const uint32_t sizes[] = { 0, 1, 2048, 4095, 4097, 12288, (1U << 30) + 4096, 1U << 31, UINT32_MAX };
	struct segment seg;
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(segment_create(&seg, sizes[i]), -EINVAL);
		assert_int_equal(segment_attach(&seg, 0, sizes[i]), -EPROTO);
	}
}

/* What a peer might pass instead of a segment: each is refused, and the fd stays the caller's. */
static int make_memfd(unsigned flags, off_t bytes, int seals)
{
	int fd = memfd_create("test", flags);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void refuse(const char *name, int fd)
{
	struct segment seg = { 0 };

	print_message("%s\n", name);
	assert_int_equal(segment_attach(&seg, fd, 4096), -EPROTO);
	assert_null(seg.base);
	if (fd >= 0)
		assert_int_equal(close(fd), 0);
}

static void refuses_what_is_not_a_sealed_memfd_of_the_size(void **state)
{
	char path[] = "/tmp/ringway-segment-XXXXXX";
	off_t right = (off_t)SEGMENT_BYTES(4096);
	int pipe_fds[2], fd;

	refuse("no fd", -1);
	assert_int_equal(pipe(pipe_fds), 0);
	close(pipe_fds[1]);
	refuse("a pipe", pipe_fds[0]);
	refuse("a device", open("/dev/zero", O_RDWR));
	refuse("a directory", open("/", O_RDONLY | O_DIRECTORY));
	fd = mkstemp(path);
	unlink(path);
	assert_int_equal(ftruncate(fd, right), 0);
	refuse("a file", fd);
	refuse("no seals", make_memfd(MFD_ALLOW_SEALING, right, 0));
	refuse("seals not allowed", make_memfd(0, right, 0));
	refuse("may shrink", make_memfd(MFD_ALLOW_SEALING, right, F_SEAL_GROW | F_SEAL_SEAL));
	refuse("may grow", make_memfd(MFD_ALLOW_SEALING, right, F_SEAL_SHRINK | F_SEAL_SEAL));
	refuse("not final", make_memfd(MFD_ALLOW_SEALING, right, F_SEAL_SHRINK | F_SEAL_GROW));
	refuse("not writable", make_memfd(MFD_ALLOW_SEALING, right, ALL_SEALS | F_SEAL_WRITE));
	refuse("empty", make_memfd(MFD_ALLOW_SEALING, 0, ALL_SEALS));
	refuse("a byte short", make_memfd(MFD_ALLOW_SEALING, right - 1, ALL_SEALS));
	refuse("a byte long", make_memfd(MFD_ALLOW_SEALING, right + 1, ALL_SEALS));
	refuse("a page", make_memfd(MFD_ALLOW_SEALING, 4096, ALL_SEALS));
	refuse("no header", make_memfd(MFD_ALLOW_SEALING, right, ALL_SEALS));
	fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_HUGETLB);
	if (fd >= 0) {
		assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
		refuse("huge pages", fd);
	}
}

static void refuses_a_read_only_descriptor(void **state)
{
	struct segment seg;
	char path[64];
	int fd = segment_create(&seg, 4096);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refuse("read-only", open(path, O_RDONLY));
	close(fd);
	segment_close(&seg);
}

static void refuses_a_header_that_differs(void **state)
{
	static const struct {
		const char *name;
		size_t offset;
	} words[] = {
		{ "magic", offsetof(struct segment_header, magic) },
		{ "version", offsetof(struct segment_header, version) },
		{ "header_bytes", offsetof(struct segment_header, header_bytes) },
		{ "ring_bytes", offsetof(struct segment_header, ring_bytes) },
		{ "segment_bytes", offsetof(struct segment_header, segment_bytes) },
	};
	size_t i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct segment mine, theirs = { 0 };
		int fd = segment_create(&mine, 4096);

		print_message("%s\n", words[i].name);
		mine.base[words[i].offset] ^= 1;
		assert_int_equal(segment_attach(&theirs, fd, 4096), -EPROTO);
		mine.base[words[i].offset] ^= 1;
		assert_int_equal(segment_attach(&theirs, fd, 8192), -EPROTO);
		assert_int_equal(segment_attach(&theirs, fd, 4096), 0);
		close(fd);
		segment_close(&mine);
		segment_close(&theirs);
	}
}

static void never_raises_sigxfsz(void **state)
{
	pid_t pid = fork_bound();

	if (!pid) {
		struct rlimit limit = { .rlim_cur = 4096, .rlim_max = 4096 };
		struct segment seg;

		setrlimit(RLIMIT_FSIZE, &limit);
		_exit(segment_create(&seg, 4096) == -EFBIG ? 0 : 1);
	}
	assert_int_equal(exit_status(pid), 0);
}

static void leaves_nothing_behind_when_out_of_fds(void **state)
{
	pid_t pid = fork_bound();

	if (!pid) {
		struct rlimit limit = { .rlim_cur = 3, .rlim_max = 3 };
		struct segment seg;

		setrlimit(RLIMIT_NOFILE, &limit);
		_exit(segment_create(&seg, 4096) == -EMFILE ? 0 : 1);
	}
	assert_int_equal(exit_status(pid), 0);
}

static void leaves_no_fd_when_it_cannot_be_mapped(void **state)
{
	pid_t pid = fork_bound();

	if (!pid) {
		struct rlimit limit = { .rlim_cur = 1 << 20, .rlim_max = 1 << 20 };
		struct segment seg;
		int next = dup(1), ret;

		close(next);
		setrlimit(RLIMIT_AS, &limit);
		ret = segment_create(&seg, 1 << 24);
		_exit(ret == -ENOMEM && dup(1) == next ? 0 : 1);
	}
	assert_int_equal(exit_status(pid), 0);
}

/* A sanitizer's shadow is address space, too, and is more than any such limit. */
#ifndef __SANITIZE_ADDRESS__

/* What a process under such a limit takes of it. */
static int under_limit(uint64_t mib)
{
	struct rlimit limit = { .rlim_cur = mib << 20, .rlim_max = mib << 20 };
	struct segment seg[16];
	int nr = 0;

	setrlimit(RLIMIT_AS, &limit);
	if (mapped_init() < 0)
		return 100;
	while (nr < 16 && segment_create(&seg[nr], 1 << 20) >= 0)
		nr++;
	return nr;
}

static void a_limited_address_space_is_the_program_s(void **state)
{
	static const struct { uint64_t mib; int segments; } cases[] = { { 40, 100 }, { 500, 100 }, { 520, 3 }, { 800, 5 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pid_t pid = fork_bound();

		if (!pid)
			_exit(under_limit(cases[i].mib) == cases[i].segments ? 0 : 1);
		assert_int_equal(exit_status(pid), 0);
	}
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rounds_a_wanted_size_to_a_possible_one),
		cmocka_unit_test(is_sealed_and_of_the_right_size),
		cmocka_unit_test(is_the_same_memory_at_both_ends),
		cmocka_unit_test(refuses_to_create_odd_sizes),
		cmocka_unit_test(refuses_what_is_not_a_sealed_memfd_of_the_size),
		cmocka_unit_test(refuses_a_read_only_descriptor),
		cmocka_unit_test(refuses_a_header_that_differs),
		cmocka_unit_test(never_raises_sigxfsz),
		cmocka_unit_test(leaves_nothing_behind_when_out_of_fds),
		cmocka_unit_test(leaves_no_fd_when_it_cannot_be_mapped),
#ifndef __SANITIZE_ADDRESS__
		cmocka_unit_test(a_limited_address_space_is_the_program_s),
#endif
	};

	alarm(50);
	return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}
