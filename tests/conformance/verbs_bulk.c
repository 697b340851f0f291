/* SPDX-License-Identifier: MIT */
/*
 * Steps that move much: how the bytes fall into calls depends on the moment, so only totals and sums are told.
 * fill and drain tell the amount to the director alone, since buffers differ between TCP and a ring.
 */
#include <linux/tcp.h> /* libc's struct tcp_info ends before the peer's window */
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "verbs.h"

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t seed_of(const char *text)
{
	return (uint64_t)parse_number(text) * 0x9e3779b97f4a7c15ull + 1;
}

static size_t random_chunk(uint64_t *state, size_t left, const char *max_text)
{
	size_t max = (size_t)parse_number(max_text);
	/* Half of the chunks are small, so that a stream has both kinds. */
	size_t bound = next_random(state) & 1 ? max : max / 16 + 1;
	size_t len = (size_t)(next_random(state) % bound) + 1;

	if (max > BUF_BYTES)
		bad_step("chunk too large", max_text);
	return len < left ? len : left;
}

static ssize_t move_out(int fd, unsigned char *from, size_t len, uint64_t *state, int flags)
{
	struct iovec iov[2] = {{from, len / 3}, {from + len / 3, len - len / 3}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	switch (next_random(state) % 4) {
	case 0:
		return flags ? send(fd, from, len, flags) : write(fd, from, len);
	case 1:
		return flags ? sendmsg(fd, &msg, flags) : writev(fd, iov, 2);
	case 2:
		return sendmsg(fd, &msg, flags | MSG_NOSIGNAL);
	default:
		return send(fd, from, len, flags | MSG_NOSIGNAL);
	}
}

static ssize_t move_in(int fd, unsigned char *to, size_t len, uint64_t *state, int flags)
{
	struct iovec iov[2] = {{to, len / 2}, {to + len / 2, len - len / 2}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	switch (next_random(state) % 5) {
	case 0:
		return flags ? recv(fd, to, len, flags) : read(fd, to, len);
	case 1:
		return flags ? recvmsg(fd, &msg, flags) : readv(fd, iov, 2);
	case 2:
		return recvmsg(fd, &msg, flags);
	case 3:
		return recv(fd, to, len, flags ? flags : MSG_WAITALL);
	default:
		return recv(fd, to, len, flags);
	}
}

static void say_total(struct actor *a, const char *what, size_t total, uint32_t sum, int error)
{
	say(a, "%s %zu sum %08x%s%s", what, total, sum, error ? " " : "", error ? strerrorname_np(error) : "");
}

void verb_stream_out(struct actor *a, int argc, char **argv)
{
	struct name *n = name_find(a, argv[1]);
	size_t total = (size_t)parse_number(argv[2]), done = 0;
	uint64_t state = seed_of(argv[4]);
	uint32_t sum = BYTES_SUM_START;
	int error = 0;

	while (done < total && !error) {
		size_t len = random_chunk(&state, total - done, argv[3]);
		ssize_t moved;

		bytes_pattern(a, n, n->sent_pos, a->buf, len);
		moved = move_out(n->fd, a->buf, len, &state, 0);
		if (moved < 0) {
			error = errno;
			break;
		}
		sum = bytes_sum(sum, a->buf, (size_t)moved);
		done += (size_t)moved;
		n->sent_pos += (uint64_t)moved;
	}
	say_total(a, "= out", done, sum, error);
}

void verb_stream_in(struct actor *a, int argc, char **argv)
{
	size_t total = (size_t)parse_number(argv[2]), done = 0;
	uint64_t state = seed_of(argv[4]);
	uint32_t sum = BYTES_SUM_START;
	int fd = fd_of(a, argv[1]), error = 0;
	ssize_t moved = 1;

	while (done < total && moved > 0) {
		moved = move_in(fd, a->buf, random_chunk(&state, total - done, argv[3]), &state, 0);
		if (moved < 0)
			error = errno;
		else
			sum = bytes_sum(sum, a->buf, (size_t)moved);
		done += moved > 0 ? (size_t)moved : 0;
	}
	say_total(a, "= in", done, sum, error);
	if (!moved)
		say(a, " end");
}

void verb_duplex(struct actor *a, int argc, char **argv)
{
	struct name *n = name_find(a, argv[1]);
	size_t total = (size_t)parse_number(argv[2]), out = 0, in = 0;
	uint64_t state = seed_of(argv[4]);
	uint32_t sum_out = BYTES_SUM_START, sum_in = BYTES_SUM_START;
	int error = 0;

	while ((out < total || in < total) && !error) {
		struct pollfd p = {.fd = n->fd, .events = (short)((out < total ? POLLOUT : 0) | (in < total ? POLLIN : 0))};
		size_t len = random_chunk(&state, total, argv[3]);
		ssize_t moved;

		if (poll(&p, 1, 20000) <= 0) {
			error = ETIME;
			break;
		}
		if (p.revents & POLLIN) {
			moved = move_in(n->fd, a->buf, len < total - in ? len : total - in, &state, MSG_DONTWAIT);
			if (moved <= 0) {
				error = moved ? errno : ENODATA;
				break;
			}
			sum_in = bytes_sum(sum_in, a->buf, (size_t)moved);
			in += (size_t)moved;
		}
		if (p.revents & POLLOUT) {
			len = len < total - out ? len : total - out;
			bytes_pattern(a, n, n->sent_pos, a->buf, len);
			moved = move_out(n->fd, a->buf, len, &state, MSG_DONTWAIT);
			if (moved < 0 && errno != EAGAIN) {
				error = errno;
				break;
			}
			moved = moved < 0 ? 0 : moved;
			sum_out = bytes_sum(sum_out, a->buf, (size_t)moved);
			out += (size_t)moved;
			n->sent_pos += (uint64_t)moved;
		}
	}
	say_total(a, "= out", out, sum_out, 0);
	say_total(a, " in", in, sum_in, error);
}

static ssize_t move_all(int fd, unsigned char *buf, size_t len, bool out)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = out ? send(fd, buf + done, len - done, MSG_NOSIGNAL) : recv(fd, buf + done, len - done, 0);

		if (n <= 0)
			return -1;
		done += (size_t)n;
	}
	return 0;
}

void verb_ping(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);

	for (long round = 0, rounds = parse_number(argv[2]); round < rounds; round++) {
		uint64_t said = (uint64_t)round, heard = ~0ull;

		if (move_all(fd, (unsigned char *)&said, 8, true) || move_all(fd, (unsigned char *)&heard, 8, false) ||
		    heard != ~said) {
			say(a, "= failed in round %ld", round);
			return;
		}
	}
	say(a, "= ok");
}

void verb_pong(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);

	for (long round = 0, rounds = parse_number(argv[2]); round < rounds; round++) {
		uint64_t heard = ~0ull, said;

		if (move_all(fd, (unsigned char *)&heard, 8, false) || heard != (uint64_t)round) {
			say(a, "= failed in round %ld", round);
			return;
		}
		said = ~heard;
		if (move_all(fd, (unsigned char *)&said, 8, true)) {
			say(a, "= failed in round %ld", round);
			return;
		}
	}
	say(a, "= ok");
}

enum { FULL_MS = 20, FULL_ROUNDS = 200, SETTLE_MS = 3000 };

/*
 * Nothing will make room any more: all that was sent is acknowledged, and the peer's window is closed. One that is open, but too little for the
 * next segment, is only used when the kernel's persist timer says so, after 200 ms or more, and that makes room.
 */
static bool kernel_has_settled(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return true;
	return !info.tcpi_unacked && (!info.tcpi_notsent_bytes || !info.tcpi_snd_wnd);
}

static bool stays_full(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	for (int ms = 0; ms < SETTLE_MS && !kernel_has_settled(fd); ms++)
		poll(NULL, 0, 1);
	return poll(&p, 1, FULL_MS) == 0;
}

void verb_fill(struct actor *a, int argc, char **argv)
{
	struct name *n = name_find(a, argv[1]);
	enum { CHUNK = 10000 };
	uint64_t total = 0, before;
	uint32_t sum = BYTES_SUM_START;
	bool settled = false;
	ssize_t moved;
	int error;

	/* The pattern of later sends must not depend on how much went in here: sent_pos stays. */
	for (int rounds = 0; rounds < FULL_ROUNDS; rounds++) {
		before = total;
		for (;;) {
			bytes_pattern(a, n, n->sent_pos + total, a->buf, CHUNK);
			moved = CALL(send(n->fd, a->buf, CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL));
			if (moved < 0)
				break;
			sum = bytes_sum(sum, a->buf, (size_t)moved);
			total += (uint64_t)moved;
		}
		error = errno;
		/* Room for less than what is worth a POLLOUT is found by the next round. */
		if (error != EAGAIN || (settled && total == before))
			break;
		settled = stays_full(n->fd);
	}
	errno = error;
	say_result(a, moved);
	say(a, " filled%s", total ? "" : " nothing");
	say_hidden(a, "filled=%lu sum=%08x", (unsigned long)total, sum);
}

void verb_drain(struct actor *a, int argc, char **argv)
{
	size_t want = (size_t)parse_number(argv[2]), got = 0;
	uint32_t sum = BYTES_SUM_START;
	int fd = fd_of(a, argv[1]);
	ssize_t n = 1;

	while (got < want && n > 0) {
		n = recv(fd, a->buf, want - got < 50000 ? want - got : 50000, 0);
		if (n > 0) {
			sum = bytes_sum(sum, a->buf, (size_t)n);
			got += (size_t)n;
		}
	}
	say(a, got == want ? "= drained" : "= less");
	if (n <= 0)
		say(a, " %s", n ? strerrorname_np(errno) : "end");
	say_hidden(a, "sum=%08x", sum);
}

void verb_echo(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);
	size_t total = 0;
	ssize_t n;

	while ((n = recv(fd, a->buf, 70000, 0)) > 0) {
		if (move_all(fd, a->buf, (size_t)n, true))
			break;
		total += (size_t)n;
	}
	say(a, "= echoed %zu", total);
	if (n < 0)
		say(a, " %s", strerrorname_np(errno));
}
