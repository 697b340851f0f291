/* SPDX-License-Identifier: MIT */
/* The calls that move bytes. Each kind moves up to `len` of them; what is received is compared at its place. */
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "soak.h"

enum { PIPE_BYTES = 32 << 10, PARTS = 4 };

static _Thread_local uint8_t *buffer;

static uint8_t *buffer_own(void)
{
	if (!buffer)
		buffer = malloc(LONGEST_STEP);
	if (!buffer)
		abort();
	return buffer;
}

static int flags_of(const struct end *e)
{
	return MSG_NOSIGNAL | (e->blocking ? 0 : MSG_DONTWAIT);
}

static ssize_t answer(ssize_t n)
{
	return n < 0 ? -errno : n;
}

/* Cuts `len` bytes into parts; how many. */
static int parts_make(struct rng *r, struct iovec *parts, uint8_t *bytes, size_t len)
{
	int nr = 0;

	while (len && nr < PARTS) {
		size_t n = nr == PARTS - 1 ? len : rng_log(r, len);

		parts[nr++] = (struct iovec){ bytes, n };
		bytes += n;
		len -= n;
	}
	return nr;
}

/* ---- before a blocking call: waits as programs do ---- */

static void wait_first(const struct end *e, struct rng *r, short events)
{
	struct pollfd one = { e->fd, events, 0 };
	struct epoll_event ev = { .events = (uint32_t)events };
	fd_set in, out;
	int set;

	switch (rng_below(r, 8)) {
	case 0:
		poll(&one, 1, -1);
		break;
	case 1:
		ppoll(&one, 1, NULL, NULL);
		break;
	case 2:
		FD_ZERO(&in);
		FD_ZERO(&out);
		FD_SET(e->fd, events & POLLIN ? &in : &out);
		select(e->fd + 1, &in, &out, NULL, NULL);
		break;
	case 3:
		set = epoll_create1(EPOLL_CLOEXEC);
		ev.events |= rng_one_in(r, 2) ? EPOLLET : 0;
		epoll_ctl(set, EPOLL_CTL_ADD, e->fd, &ev);
		epoll_wait(set, &ev, 1, -1);
		close(set);
		break;
	default:
		break;
	}
}

/* ---- sending ---- */

static ssize_t send_vectors(struct end *e, struct rng *r, uint8_t *bytes, size_t len, bool message)
{
	struct iovec parts[PARTS];
	int nr = parts_make(r, parts, bytes, len);
	struct msghdr m = { .msg_iov = parts, .msg_iovlen = (size_t)nr };

	return answer(message ? sendmsg(e->fd, &m, flags_of(e)) : writev(e->fd, parts, nr));
}

static ssize_t send_messages(struct end *e, struct rng *r, uint8_t *bytes, size_t len)
{
	struct iovec parts[PARTS];
	struct mmsghdr m[PARTS] = { 0 };
	int nr = parts_make(r, parts, bytes, len), done;
	ssize_t sum = 0;

	for (int i = 0; i < nr; i++)
		m[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
	done = sendmmsg(e->fd, m, (unsigned int)nr, flags_of(e));
	for (int i = 0; i < done; i++) {
		sum += m[i].msg_len;
		/* The next message has followed on a short one: what has been sent is not the stream. */
		if (m[i].msg_len < parts[i].iov_len && i + 1 < done)
			end_failed(e, "sendmmsg went on after a short message");
	}
	return done < 0 ? -errno : sum;
}

static ssize_t send_file(struct end *e, uint8_t *bytes, size_t len)
{
	int file = memfd_create("soak-file", MFD_CLOEXEC);
	off_t from = 0;
	ssize_t n = write(file, bytes, len);

	if (n > 0)
		n = answer(sendfile(e->fd, file, &from, (size_t)n));
	close(file);
	return n;
}

/* What lies in memory of ours goes on being the kernel's: it is fresh, and unmapped at once. */
static ssize_t send_fresh_pages(struct end *e, uint8_t *bytes, size_t len, bool spliced)
{
	uint8_t *pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec part = { pages, len };
	int one = 1, ends[2];
	ssize_t n;

	if (pages == MAP_FAILED)
		abort();
	memcpy(pages, bytes, len);
	if (spliced) {
		if (pipe2(ends, O_CLOEXEC))
			abort();
		n = vmsplice(ends[1], &part, 1, 0);
		if (n > 0)
			n = answer(splice(ends[0], NULL, e->fd, NULL, (size_t)n, e->blocking ? 0 : SPLICE_F_NONBLOCK));
		close(ends[0]);
		close(ends[1]);
	} else {
		setsockopt(e->fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one));
		n = answer(send(e->fd, pages, len, MSG_ZEROCOPY | flags_of(e)));
		/* No more memory for notes of what is on its way. */
		if (n == -ENOBUFS)
			n = -EINTR;
	}
	munmap(pages, len);
	return n;
}

static ssize_t send_spliced(struct end *e, uint8_t *bytes, size_t len)
{
	int ends[2];
	ssize_t n;

	if (pipe2(ends, O_CLOEXEC))
		abort();
	n = write(ends[1], bytes, len < PIPE_BYTES ? len : PIPE_BYTES);
	if (n > 0)
		n = answer(splice(ends[0], NULL, e->fd, NULL, (size_t)n, e->blocking ? 0 : SPLICE_F_NONBLOCK));
	close(ends[0]);
	close(ends[1]);
	return n;
}

/* Takes what the kernel notes of zero-copy sends; without it POLLERR stays. */
static void errors_take(const struct end *e)
{
	char control[CMSG_SPACE(sizeof(struct sock_extended_err) + 64)];
	struct msghdr m;

	do {
		m = (struct msghdr){ .msg_control = control, .msg_controllen = sizeof(control) };
	} while (recvmsg(e->fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0);
}

ssize_t step_send(struct end *e, struct rng *r, size_t len)
{
	uint64_t kind = rng_below(r, 64);
	uint8_t *bytes = buffer_own();

	bytes_fill(stream_key(e->conn, e->side), e->tx_pos, bytes, len);
	if (e->blocking)
		wait_first(e, r, POLLOUT);
	if (kind < 20) {
		end_tell(e, "send");
		return answer(send(e->fd, bytes, len, flags_of(e)));
	}
	if (kind < 32) {
		end_tell(e, "write");
		return answer(write(e->fd, bytes, len));
	}
	if (kind < 44) {
		end_tell(e, "writev, sendmsg");
		return send_vectors(e, r, bytes, len, kind & 1);
	}
	if (kind < 50) {
		end_tell(e, "sendmmsg");
		return send_messages(e, r, bytes, len);
	}
	if (kind < 55) {
		end_tell(e, "send more");
		return answer(send(e->fd, bytes, len, MSG_MORE | flags_of(e)));
	}
	if (kind < 61) {
		end_tell(e, "sendfile");
		return send_file(e, bytes, len);
	}
	if (kind < 63 || e->conn % 4) {
		end_tell(e, "splice out");
		return send_spliced(e, bytes, len);
	}
	end_tell(e, "zero copy, vmsplice");
	errors_take(e);
	return send_fresh_pages(e, bytes, len < PIPE_BYTES ? len : PIPE_BYTES, e->conn & 4);
}

/* ---- receiving ---- */

/* What was received at our place. */
static ssize_t compared(struct end *e, const uint8_t *got, ssize_t n, const char *how)
{
	uint64_t key = stream_key(e->conn, !e->side);
	ssize_t wrong = n > 0 ? bytes_differ(key, e->rx_pos, got, (size_t)n) : -1;
	uint64_t at = e->rx_pos + (uint64_t)wrong;

	if (wrong >= 0)
		end_failed(e, "%s of %zd at %llu: wrong from %llu on: what comes is what stands at %lld (-1: nowhere)", how, n,
			   (unsigned long long)e->rx_pos, (unsigned long long)at,
			   (long long)bytes_find(key, at, got + wrong, (size_t)(n - wrong)));
	return n;
}

static ssize_t receive_vectors(struct end *e, struct rng *r, uint8_t *bytes, size_t len, bool message)
{
	struct iovec parts[PARTS];
	int nr = parts_make(r, parts, bytes, len);
	struct msghdr m = { .msg_iov = parts, .msg_iovlen = (size_t)nr };

	return compared(e, bytes, answer(message ? recvmsg(e->fd, &m, flags_of(e)) : readv(e->fd, parts, nr)), message ? "recvmsg" : "readv");
}

static ssize_t receive_messages(struct end *e, struct rng *r, uint8_t *bytes, size_t len)
{
	struct iovec parts[PARTS];
	struct mmsghdr m[PARTS] = { 0 };
	int nr = parts_make(r, parts, bytes, len), done;
	size_t sum = 0;

	for (int i = 0; i < nr; i++)
		m[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
	done = recvmmsg(e->fd, m, (unsigned int)nr, MSG_WAITFORONE | flags_of(e), NULL);
	if (done < 0)
		return -errno;
	for (int i = 0; i < done; i++) {
		memmove(bytes + sum, parts[i].iov_base, m[i].msg_len);
		sum += m[i].msg_len;
	}
	return compared(e, bytes, (ssize_t)sum, "recvmmsg");
}

static ssize_t receive_spliced(struct end *e, uint8_t *bytes, size_t len)
{
	int ends[2];
	ssize_t n;

	if (pipe2(ends, O_CLOEXEC))
		abort();
	n = answer(splice(e->fd, NULL, ends[1], NULL, len < PIPE_BYTES ? len : PIPE_BYTES, e->blocking ? 0 : SPLICE_F_NONBLOCK));
	if (n > 0 && read(ends[0], bytes, (size_t)n) != n)
		end_failed(e, "less came out of a pipe than splice had told");
	close(ends[0]);
	close(ends[1]);
	return compared(e, bytes, n, "splice");
}

/*
 * A peek, and the same bytes again. An end that was only seen is read, too: a peek passes over an urgent byte that lies in front of it, and leaves it to make
 * a reset of the close.
 */
static ssize_t receive_peeked(struct end *e, uint8_t *bytes, size_t len)
{
	ssize_t seen = compared(e, bytes, answer(recv(e->fd, bytes, len, MSG_PEEK | flags_of(e))), "peek"), n;

	if (seen < 0)
		return seen;
	n = answer(recv(e->fd, bytes, seen ? (size_t)seen : len, flags_of(e)));
	if (seen == 0 && (n > 0 || n == -EAGAIN))
		end_failed(e, "a peek at %llu says that this is the end, and recv %zd", (unsigned long long)e->rx_pos, n);
	if (seen > 0 && (n == 0 || n == -EAGAIN))
		end_failed(e, "%zd bytes were seen by a peek at %llu, and are not there", seen, (unsigned long long)e->rx_pos);
	return compared(e, bytes, n, "read after a peek");
}

/* FIONREAD promises bytes. */
static ssize_t receive_promised(struct end *e, uint8_t *bytes, size_t len)
{
	bool urgent = e->plan.urgent_pos[!e->side] != UINT64_MAX;
	int there = 0;
	ssize_t n;

	if (ioctl(e->fd, FIONREAD, &there))
		return -errno;
	n = answer(recv(e->fd, bytes, len, flags_of(e)));
	if (!urgent && n >= 0 && (size_t)n < len && n < there)
		end_failed(e, "FIONREAD says %d, recv of %zu brings %zd, at %llu", there, len, n, (unsigned long long)e->rx_pos);
	return compared(e, bytes, n, "recv");
}

/*
 * So much of `len` comes without a word of ours: who waits for it waits for the peer alone. The other thread of this end may have sent more
 * than it has told; a byte can be waited for at any time, since the stream ends at last.
 */
static size_t receive_sure(const struct end *e, size_t len)
{
	uint64_t to = plan_limit(&e->plan, e->conn, !e->side, e->tx_pos), sure = to > e->rx_pos ? to - e->rx_pos : 1;

	return e->blocking && len > sure ? sure : len;
}

ssize_t step_receive(struct end *e, struct rng *r, size_t len)
{
	bool urgent = e->plan.urgent_pos[!e->side] != UINT64_MAX;
	uint64_t kind = rng_below(r, 64);
	uint8_t *bytes = buffer_own();

	e->stops_short = false;
	if (e->blocking)
		wait_first(e, r, POLLIN);
	if (kind < 18) {
		end_tell(e, "recv");
		return compared(e, bytes, answer(recv(e->fd, bytes, len, flags_of(e))), "recv");
	}
	if (kind < 32) {
		end_tell(e, "read");
		return compared(e, bytes, answer(read(e->fd, bytes, len)), "read");
	}
	if (kind < 42) {
		end_tell(e, "readv, recvmsg");
		return receive_vectors(e, r, bytes, len, kind & 1);
	}
	if (kind < 46) {
		end_tell(e, "recvmmsg");
		return receive_messages(e, r, bytes, len);
	}
	if (kind < 52) {
		end_tell(e, "peek");
		return receive_peeked(e, bytes, len);
	}
	if (kind < 55) {
		end_tell(e, "fionread");
		return receive_promised(e, bytes, len);
	}
	if (kind < 57) {
		end_tell(e, "recv dropped");
		return answer(recv(e->fd, NULL, len, MSG_TRUNC | flags_of(e)));
	}
	/* A splice stands still before an urgent byte. */
	if (kind < 61 && !urgent) {
		end_tell(e, "splice in");
		/* A pipe takes so many pieces. */
		e->stops_short = true;
		return receive_spliced(e, bytes, len);
	}
	end_tell(e, "recv all");
	return compared(e, bytes, answer(recv(e->fd, bytes, receive_sure(e, len), MSG_WAITALL | flags_of(e))), "recv all");
}
