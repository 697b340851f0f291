/* SPDX-License-Identifier: MIT */
/*
 * What the ring costs beside the least that any shared memory could do: two processes, one on each CPU, that bounce a bare
 * cache line or push bytes through a minimal ring, and the same with ringbuf's. All rows are run in turn, several
 * rounds in one process pair, so that a noisy machine is noisy for all; each row keeps its median round.
 *
 *	ringbench [ROUNDS [SCALE]]     SCALE 1..100: percent of the full count, for a quick look
 *
 * Prints one line a row: name, ns per operation, and what it is to its bare counterpart.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ringbuf/shm.h"
#include "tests/bench/bare_ring.h"

#define LARGE_BYTES (1 << 16)
#define ROUNDS_MAX 100

struct shared {
	_Alignas(128) _Atomic uint64_t line;
	_Alignas(128) _Atomic uint64_t started;
	_Alignas(128) _Atomic uint64_t finished;
	struct bare_ring bare[2];
	_Alignas(128) struct ring_link near;
	_Alignas(128) struct ring_link far;
};

static struct shared *shared;
static uint8_t large[LARGE_BYTES];

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * Each row is two functions of the same count: the near one is timed, the far one runs in the child.
 */
static void line_near(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		store_release(&shared->line, 2 * i + 1);
		while (load_acquire(&shared->line) != 2 * i + 2)
			;
	}
}

static void line_far(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		while (load_acquire(&shared->line) != 2 * i + 1)
			;
		store_release(&shared->line, 2 * i + 2);
	}
}

static void bare_reset(void)
{
	for (int i = 0; i < 2; i++) {
		store_relaxed(&shared->bare[i].tail, 0);
		store_relaxed(&shared->bare[i].head, 0);
	}
}

static void bare_pong_near(uint64_t count)
{
	struct bare_side tail = { 0 }, head = { 0 };
	uint64_t word;

	for (uint64_t i = 0; i < count; i++) {
		bare_send(&shared->bare[0], &tail, &i, 8);
		bare_recv(&shared->bare[1], &head, &word, 8);
	}
}

static void bare_pong_far(uint64_t count)
{
	struct bare_side tail = { 0 }, head = { 0 };
	uint64_t word;

	for (uint64_t i = 0; i < count; i++) {
		bare_recv(&shared->bare[0], &head, &word, 8);
		bare_send(&shared->bare[1], &tail, &word, 8);
	}
}

static void bare_small_near(uint64_t count)
{
	struct bare_side tail = { 0 };

	for (uint64_t i = 0; i < count; i++)
		bare_send(&shared->bare[0], &tail, &i, 8);
	while (load_acquire(&shared->bare[0].head) != tail.pos)
		;
}

static void bare_small_far(uint64_t count)
{
	struct bare_side head = { 0 };
	uint64_t word = 0;

	for (uint64_t i = 0; i < count; i++) {
		bare_recv(&shared->bare[0], &head, &word, 8);
		if (word != i)
			abort();
	}
}

static void bare_large_near(uint64_t count)
{
	struct bare_side tail = { 0 };

	for (uint64_t i = 0; i < count; i++)
		bare_send(&shared->bare[0], &tail, large, LARGE_BYTES);
	while (load_acquire(&shared->bare[0].head) != tail.pos)
		;
}

static void bare_large_far(uint64_t count)
{
	struct bare_side head = { 0 };

	for (uint64_t i = 0; i < count; i++)
		bare_recv(&shared->bare[0], &head, large, LARGE_BYTES);
}

static inline void ours_send(struct ring_tx *tx, const uint8_t *buf, size_t len)
{
	while (len) {
		ssize_t sent = ring_write(tx, buf, len);

		if (sent < 0)
			abort();
		if (sent)
			ring_tx_notify(tx);
		else
			cpu_relax();
		buf += sent;
		len -= (size_t)sent;
	}
}

static inline void ours_recv(struct ring_rx *rx, uint8_t *buf, size_t len)
{
	while (len) {
		ssize_t got = ring_read(rx, buf, len);

		if (got < 0)
			abort();
		if (!got)
			ring_rx_relax(rx);
		buf += got;
		len -= (size_t)got;
	}
}

static void ours_pong_near(uint64_t count)
{
	uint64_t word;

	for (uint64_t i = 0; i < count; i++) {
		ours_send(&shared->near.tx, (uint8_t *)&i, 8);
		ours_recv(&shared->near.rx, (uint8_t *)&word, 8);
	}
}

static void ours_pong_far(uint64_t count)
{
	uint64_t word;

	for (uint64_t i = 0; i < count; i++) {
		ours_recv(&shared->far.rx, (uint8_t *)&word, 8);
		ours_send(&shared->far.tx, (uint8_t *)&word, 8);
	}
}

static void ours_small_near(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		ours_send(&shared->near.tx, (uint8_t *)&i, 8);
	while (ring_tx_queued(&shared->near.tx))
		;
}

static void ours_small_far(uint64_t count)
{
	uint64_t word = 0;

	for (uint64_t i = 0; i < count; i++) {
		ours_recv(&shared->far.rx, (uint8_t *)&word, 8);
		if (word != i)
			abort();
	}
}

static void ours_large_near(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		ours_send(&shared->near.tx, large, LARGE_BYTES);
	while (ring_tx_queued(&shared->near.tx))
		;
}

static void ours_large_far(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		ours_recv(&shared->far.rx, large, LARGE_BYTES);
}

static struct row {
	const char *name;
	const char *bare; /* the row that this one is compared with */
	void (*near)(uint64_t count), (*far)(uint64_t count);
	uint64_t count;
	double round_ns[ROUNDS_MAX];
	double median_ns;
} rows[] = {
	{ "cache line, round trip", "", line_near, line_far, 200000, { 0 }, 0 },
	{ "bare ring, 8 B round trip", "cache line, round trip", bare_pong_near, bare_pong_far, 100000, { 0 }, 0 },
	{ "ringbuf, 8 B round trip", "cache line, round trip", ours_pong_near, ours_pong_far, 100000, { 0 }, 0 },
	{ "bare ring, 8 B one way", "", bare_small_near, bare_small_far, 2000000, { 0 }, 0 },
	{ "ringbuf, 8 B one way", "bare ring, 8 B one way", ours_small_near, ours_small_far, 2000000, { 0 }, 0 },
	{ "bare ring, 64 KiB one way", "", bare_large_near, bare_large_far, 8000, { 0 }, 0 },
	{ "ringbuf, 64 KiB one way", "bare ring, 64 KiB one way", ours_large_near, ours_large_far, 8000, { 0 }, 0 },
};
#define NR_ROWS (sizeof(rows) / sizeof(rows[0]))

static void pin(int nth)
{
	cpu_set_t allowed, one;
	int cpu;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || nth--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static const struct row *row_named(const char *name)
{
	for (size_t i = 0; i < NR_ROWS; i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

static int in_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void open_link(void)
{
	struct link_bells near_bells, far_bells;
	int fd = shm_create(&shared->near, BARE_BYTES, &near_bells);

	if (fd < 0 || shm_attach(&shared->far, fd, BARE_BYTES, &far_bells) < 0) {
		fprintf(stderr, "ringbench: no link: %d\n", fd);
		exit(2);
	}
	close(fd);
	shm_meet(&shared->near, &far_bells);
	shm_meet(&shared->far, &near_bells);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 5;
	uint64_t scale = argc > 2 ? (uint64_t)atoi(argv[2]) : 100;
	uint64_t turn = 0;
	pid_t far;

	if (rounds < 1 || rounds > ROUNDS_MAX || scale < 1 || scale > 100) {
		fprintf(stderr, "usage: ringbench [ROUNDS [SCALE]]\n");
		return 2;
	}
	/* Neither process outlives who started it, nor spins for ever. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(300);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		perror("ringbench: mmap");
		return 2;
	}
	open_link();
	barrier_init();
	far = fork();
	if (far < 0) {
		perror("ringbench: fork");
		return 2;
	}
	if (!far) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(300);
	}
	pin(far ? 0 : 1);
	if (!far)
		barrier_init();
	for (int round = 0; round < rounds; round++) {
		for (size_t i = 0; i < NR_ROWS; i++) {
			struct row *row = &rows[i];
			uint64_t count = row->count * scale / 100 + 1, start;
			double ns;

			turn++;
			if (!far) {
				while (load_acquire(&shared->started) != turn)
					;
				row->far(count);
				store_release(&shared->finished, turn);
				continue;
			}
			bare_reset();
			store_relaxed(&shared->line, 0);
			start = now_ns();
			store_release(&shared->started, turn);
			row->near(count);
			ns = (double)(now_ns() - start) / (double)count;
			while (load_acquire(&shared->finished) != turn)
				;
			row->round_ns[round] = ns;
		}
	}
	if (!far)
		_exit(0);
	waitpid(far, NULL, 0);
	for (size_t i = 0; i < NR_ROWS; i++) {
		qsort(rows[i].round_ns, (size_t)rounds, sizeof(double), in_order);
		rows[i].median_ns = rows[i].round_ns[rounds / 2];
	}
	for (size_t i = 0; i < NR_ROWS; i++) {
		const struct row *bare = row_named(rows[i].bare);

		printf("%-28s %10.1f ns", rows[i].name, rows[i].median_ns);
		if (bare)
			printf("   %.2f times \"%s\"", rows[i].median_ns / bare->median_ns, bare->name);
		printf("\n");
	}
	return 0;
}
