/* SPDX-License-Identifier: MIT */
/* Two ends of one link in one process, as the creator and the attacher of a rendezvous would have them. */
#ifndef RINGWAY_TESTS_RING_FIXTURE_H
#define RINGWAY_TESTS_RING_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringbuf/shm.h"
#include "ringbuf/sys.h"

#define FIXTURE_RING_BYTES 4096

struct pair {
	struct ring_link creator, attacher;
};

/* In shared memory, so that the halves work for forked children as they do in the shim. */
static inline struct pair *pair_open(uint32_t ring_bytes)
{
	struct pair *pair = mmap(NULL, sizeof(*pair), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct link_bells of_creator, of_attacher;
	int fd;

	assert_ptr_not_equal(pair, MAP_FAILED);
	fd = shm_create(&pair->creator, ring_bytes, &of_creator);
	assert_true(fd >= 0);
	assert_int_equal(shm_attach(&pair->attacher, fd, ring_bytes, &of_attacher), 0);
	close(fd);
	shm_meet(&pair->creator, &of_attacher);
	shm_meet(&pair->attacher, &of_creator);
	return pair;
}

static inline void pair_close(struct pair *pair)
{
	shm_close(&pair->creator);
	shm_close(&pair->attacher);
	munmap(pair, sizeof(*pair));
}

/* Moves the creator's lane to a position as if so many bytes had passed. */
static inline void pair_start_at(struct pair *pair, uint64_t pos)
{
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;

	tx->tail_pos = tx->head_seen = rx->head_pos = rx->tail_seen = pos;
	tx->last_move = rx->last_move = pos & TAIL_POS_MASK;
	ring_tx_place(tx);
	ring_rx_place(rx);
	peer_publish_u64(&tx->front->tail_pos, pos & TAIL_POS_MASK);
	peer_publish_u64(&tx->ctl->rx.head_pos, pos);
}

static inline bool readable(int fd, int timeout_ms)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, timeout_ms) == 1;
}

/* A child that dies with the test. */
static inline pid_t fork_bound(void)
{
	pid_t parent = getpid(), pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(99);
		alarm(50);
	}
	return pid;
}

static inline int exit_status(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The lane on which the creator sends: its wake words, a publication with the look that belongs to it, and a read. */
#define QUARTER (FIXTURE_RING_BYTES / 4)

static inline uint32_t rx_word(const struct pair *pair)
{
	return peer_read_u32(&pair->attacher.rx.ctl->rx_state.wake);
}

static inline uint32_t tx_word(const struct pair *pair)
{
	return peer_read_u32(&pair->creator.tx.ctl->tx_state.wake);
}

static inline uint32_t send_bytes(struct pair *pair, size_t len)
{
	static const uint8_t bytes[FIXTURE_RING_BYTES];

	assert_int_equal(ring_write(&pair->creator.tx, bytes, len), len);
	return ring_tx_notify(&pair->creator.tx);
}

static inline void take_bytes(struct pair *pair, size_t len)
{
	uint8_t bytes[FIXTURE_RING_BYTES];

	assert_int_equal(ring_read(&pair->attacher.rx, bytes, len), len);
}

#endif
