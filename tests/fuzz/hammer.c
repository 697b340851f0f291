/* SPDX-License-Identifier: MIT */
/*
 * hammer SEED [COUNT]: two processes exchange random streams over loopback TCP in ways that the seed chooses, and check every byte.
 *
 * Each end has a manner of sending and one of receiving (blocking, poll, select, epoll level and edge, vectors, messages, peeks,
 * timeouts), of cutting its stream into calls, and of sharing the socket with a thread or a forked child. Streams are
 * pseudo-random numbers that the receiver computes too, so a byte that is lost, doubled or moved is found where it is. At the end
 * both ends must see the end of the stream, with no error. The program knows nothing of the shim: it is run with and without.
 *
 * Exit status 0 when all went well; what did not is told with the seed that repeats it. A watchdog ends what hangs.
 */
#include "stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCHDOG_SECONDS 60
#define LARGEST (1 << 18)

enum waiting { BLOCKING, WITH_POLL, WITH_SELECT, WITH_EPOLL, WITH_EPOLL_EDGE, WITH_TIMEOUT, NR_WAITING };
enum sending { SEND, WRITE, WRITEV, SENDMSG, SENDMMSG, SENDFILE, NR_SENDING };
enum receiving { RECV, READ, READV, RECVMSG, RECVMMSG, PEEK_FIRST, WAITALL, ASK_FIRST, NR_RECEIVING };
enum sharing { ALONE, TWO_THREADS, CHILD_GOES_ON, CHILD_SENDS, NR_SHARING };

static const char *const waiting_names[] = { "blocking", "poll", "select", "epoll", "epoll-edge", "timeout" };
static const char *const sending_names[] = { "send", "write", "writev", "sendmsg", "sendmmsg", "sendfile" };
static const char *const receiving_names[] = { "recv", "read", "readv", "recvmsg", "recvmmsg", "peek", "waitall", "fionread" };
static const char *const sharing_names[] = { "alone", "two-threads", "child-goes-on", "child-sends" };

/* What one end does. */
struct manner {
	enum waiting tx_waiting, rx_waiting;
	enum sending sending;
	enum receiving receiving;
	enum sharing sharing;
	unsigned largest;	/* bytes a call */
	uint64_t total;		/* bytes that this end sends */
};

struct end {
	const char *name;
	int fd, epoll_tx, epoll_rx;
	struct manner m;
	uint64_t rng;
	struct stream tx, rx;
	uint64_t sent, got, expected;
	uint64_t turn;	/* bytes of a message in turns; 0: streams without turns */
	bool first;
	uint8_t *tx_buf, *rx_buf, *want;
};

static uint64_t seed;
static struct end *watched;

static void fail(const struct end *e, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "hammer: seed %llu, %s end: ", (unsigned long long)seed, e->name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, " (sent %llu of %llu with %s/%s, got %llu of %llu with %s/%s, %s, calls up to %u, turn %llu)\n",
		(unsigned long long)e->sent, (unsigned long long)e->m.total, sending_names[e->m.sending],
		waiting_names[e->m.tx_waiting], (unsigned long long)e->got, (unsigned long long)e->expected,
		receiving_names[e->m.receiving], waiting_names[e->m.rx_waiting], sharing_names[e->m.sharing], e->m.largest,
		(unsigned long long)e->turn);
	_exit(1);
}

static void wait_for(struct end *e, bool tx)
{
	enum waiting how = tx ? e->m.tx_waiting : e->m.rx_waiting;
	struct pollfd p = { .fd = e->fd, .events = tx ? POLLOUT : POLLIN };
	struct epoll_event event;
	fd_set set;
	int n;

	switch (how) {
	case WITH_SELECT:
		FD_ZERO(&set);
		FD_SET(e->fd, &set);
		n = select(e->fd + 1, tx ? NULL : &set, tx ? &set : NULL, NULL, NULL);
		break;
	case WITH_EPOLL:
	case WITH_EPOLL_EDGE:
		n = epoll_wait(tx ? e->epoll_tx : e->epoll_rx, &event, 1, -1);
		break;
	default:
		n = poll(&p, 1, -1);
		break;
	}
	if (n <= 0 && errno != EINTR)
		fail(e, "waiting: %d, %s", n, strerror(errno));
}

/* Cuts a buffer into up to `nr` pieces. */
static int cut(struct end *e, struct iovec *iov, int nr, uint8_t *buf, size_t len)
{
	int used = 0;

	while (len && used < nr - 1) {
		size_t piece = pick(&e->rng, (unsigned)len + 1);

		iov[used++] = (struct iovec){ buf, piece };
		buf += piece;
		len -= piece;
	}
	if (len)
		iov[used++] = (struct iovec){ buf, len };
	return used;
}

/* sendfile() may pass on pages of the file, so no byte of it is written twice. */
static ssize_t send_once(struct end *e, size_t len, int file)
{
	struct iovec iov[8] = { 0 };
	struct mmsghdr many[2] = { 0 };
	struct msghdr msg = { .msg_iov = iov };
	int flags = e->m.tx_waiting != BLOCKING && e->m.tx_waiting != WITH_TIMEOUT ? MSG_DONTWAIT : 0;
	int nr, sent;
	off_t off = (off_t)e->sent;

	switch (e->m.sending) {
	case SEND:
		return send(e->fd, e->tx_buf, len, flags | (pick(&e->rng, 4) ? 0 : MSG_MORE) * (flags == 0 && e->turn == 0));
	case WRITEV:
		return writev(e->fd, iov, cut(e, iov, 8, e->tx_buf, len));
	case SENDMSG:
		msg.msg_iovlen = (size_t)cut(e, iov, 8, e->tx_buf, len);
		return sendmsg(e->fd, &msg, flags);
	case SENDMMSG:
		nr = cut(e, iov, 2, e->tx_buf, len);
		for (int i = 0; i < nr; i++) {
			many[i].msg_hdr.msg_iov = &iov[i];
			many[i].msg_hdr.msg_iovlen = 1;
		}
		sent = sendmmsg(e->fd, many, (unsigned)nr, flags);
		if (sent < 0)
			return -1;
		/* A short first message with a second one behind it would be a hole; the kernel stops there, too. */
		if (sent == 2 && many[0].msg_len != iov[0].iov_len)
			fail(e, "sendmmsg went on behind a short message");
		if (sent == 1 && nr == 2 && !iov[0].iov_len) {
			errno = EAGAIN;	/* an empty message went, and no room was left behind it */
			return -1;
		}
		return (ssize_t)many[0].msg_len + (sent == 2 ? (ssize_t)many[1].msg_len : 0);
	case SENDFILE:
		if (pwrite(file, e->tx_buf, len, off) != (ssize_t)len)
			fail(e, "cannot write the file");
		return sendfile(e->fd, file, &off, len);
	default:
		return write(e->fd, e->tx_buf, len);
	}
}

static bool would_block(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static void send_bytes(struct end *e, uint64_t nr)
{
	int file = e->m.sending == SENDFILE ? memfd_create("hammer", MFD_CLOEXEC) : -1;

	while (nr) {
		size_t len = 1 + pick(&e->rng, e->m.largest), done = 0;

		if (len > nr)
			len = nr;
		stream_bytes(&e->tx, e->tx_buf, len);
		while (done < len) {
			struct end rest = *e;
			ssize_t n;

			rest.tx_buf += done;
			n = send_once(&rest, len - done, file);
			if (n < 0 && would_block()) {
				wait_for(e, true);
				continue;
			}
			if (n <= 0)
				fail(e, "sending %zu bytes: %zd, %s", len - done, n, strerror(errno));
			done += (size_t)n;
			e->sent += (uint64_t)n;
			random_next(&e->rng);
		}
		nr -= len;
	}
	if (file >= 0)
		close(file);
}

static ssize_t receive_once(struct end *e, size_t len)
{
	struct iovec iov[8] = { 0 };
	struct mmsghdr many[2] = { 0 };
	struct msghdr msg = { .msg_iov = iov };
	int flags = e->m.rx_waiting != BLOCKING && e->m.rx_waiting != WITH_TIMEOUT ? MSG_DONTWAIT : 0;
	ssize_t n;
	int nr, waiting;

	switch (e->m.receiving) {
	case RECV:
		return recv(e->fd, e->rx_buf, len, flags);
	case READV:
		return readv(e->fd, iov, cut(e, iov, 8, e->rx_buf, len));
	case RECVMSG:
		msg.msg_iovlen = (size_t)cut(e, iov, 8, e->rx_buf, len);
		return recvmsg(e->fd, &msg, flags);
	case RECVMMSG:
		nr = cut(e, iov, 2, e->rx_buf, len);
		if (!iov[0].iov_len)
			return recv(e->fd, e->rx_buf, len, flags);
		many[0].msg_hdr.msg_iov = &iov[0];
		many[0].msg_hdr.msg_iovlen = 1;
		nr = recvmmsg(e->fd, many, 1, flags, NULL);
		return nr < 0 ? -1 : (ssize_t)many[0].msg_len;
	case PEEK_FIRST:
		n = recv(e->fd, e->want, len, flags | MSG_PEEK);
		if (n <= 0)
			return n;
		len = (size_t)n;
		n = recv(e->fd, e->rx_buf, len, MSG_DONTWAIT);
		if (n <= 0 || memcmp(e->want, e->rx_buf, (size_t)n))
			fail(e, "peeked %zu, then received %zd, or something else", len, n);
		return n;
	case WAITALL:
		return recv(e->fd, e->rx_buf, len, flags | MSG_WAITALL);
	case ASK_FIRST:
		if (ioctl(e->fd, FIONREAD, &waiting) || waiting < 0)
			fail(e, "FIONREAD: %s", strerror(errno));
		n = recv(e->fd, e->rx_buf, len, flags);
		if (waiting > 0 && (n < 0 || ((size_t)n < len && n < waiting)))
			fail(e, "FIONREAD promised %d of %zu, %zd came", waiting, len, n);
		return n;
	default:
		return read(e->fd, e->rx_buf, len);
	}
}

/* False at the end of the stream. */
static bool receive_some(struct end *e, uint64_t most)
{
	size_t len = 1 + pick(&e->rng, e->m.largest);
	ssize_t n;

	if (len > most)
		len = most;
	for (;;) {
		n = receive_once(e, len);
		if (n >= 0)
			break;
		if (!would_block())
			fail(e, "receiving: %s", strerror(errno));
		wait_for(e, false);
	}
	if (n == 0)
		return false;
	stream_bytes(&e->rx, e->want, (size_t)n);
	for (ssize_t i = 0; i < n; i++)
		if (e->want[i] != e->rx_buf[i])
			fail(e, "byte %llu of the stream is wrong", (unsigned long long)e->got + (unsigned long long)i);
	e->got += (uint64_t)n;
	return true;
}

static void receive_bytes(struct end *e, uint64_t nr)
{
	uint64_t until = e->got + nr;

	while (e->got < until)
		if (!receive_some(e, until - e->got))
			fail(e, "the stream ended early");
}

static void receive_end(struct end *e)
{
	if (receive_some(e, 1))
		fail(e, "the stream goes on behind its end");
}

static void *receive_all(void *arg)
{
	struct end *e = arg;

	receive_bytes(e, e->expected);
	receive_end(e);
	return NULL;
}

static void *send_all(void *arg)
{
	struct end *e = arg;

	send_bytes(e, e->m.total);
	if (shutdown(e->fd, SHUT_WR))
		fail(e, "shutdown: %s", strerror(errno));
	return NULL;
}

/* One thread: messages in turns, so that each waits for the other. */
static void take_turns(struct end *e)
{
	while (e->sent < e->m.total || e->got < e->expected) {
		uint64_t mine = e->m.total - e->sent < e->turn ? e->m.total - e->sent : e->turn;
		uint64_t theirs = e->expected - e->got < e->turn ? e->expected - e->got : e->turn;

		if (e->first)
			send_bytes(e, mine);
		receive_bytes(e, theirs);
		if (!e->first)
			send_bytes(e, mine);
	}
}

static void reap(struct end *e, pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status)
		fail(e, "the child ended with %d", status);
}

static void run_end(struct end *e)
{
	pthread_t thread;
	pid_t child;

	switch (e->m.sharing) {
	case TWO_THREADS:
		if (pthread_create(&thread, NULL, receive_all, e))
			fail(e, "no thread");
		send_all(e);
		pthread_join(thread, NULL);
		return;
	case CHILD_SENDS:
		/* The parent receives, the child sends: both hold the socket. */
		child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(WATCHDOG_SECONDS);
			send_all(e);
			_exit(0);
		}
		receive_all(e);
		reap(e, child);
		return;
	case CHILD_GOES_ON:
		/* In the middle of the exchange a child takes over. */
		if (e->turn && e->m.total > 4 * e->turn && e->expected > 4 * e->turn) {
			uint64_t total = e->m.total, expected = e->expected;

			e->m.total = e->expected = e->turn * (1 + pick(&e->rng, 2));
			take_turns(e);
			e->m.total = total;
			e->expected = expected;
		}
		child = fork();
		if (child != 0) {
			reap(e, child);
			return;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(WATCHDOG_SECONDS);
		break;
	default:
		break;
	}
	take_turns(e);
	if (shutdown(e->fd, SHUT_WR))
		fail(e, "shutdown: %s", strerror(errno));
	receive_end(e);
	if (e->m.sharing == CHILD_GOES_ON)
		_exit(0);
}

static void join_sets(struct end *e)
{
	struct epoll_event event = { .events = EPOLLIN };

	e->epoll_tx = epoll_create1(EPOLL_CLOEXEC);
	e->epoll_rx = epoll_create1(EPOLL_CLOEXEC);
	if (e->m.rx_waiting == WITH_EPOLL_EDGE)
		event.events |= EPOLLET;
	epoll_ctl(e->epoll_rx, EPOLL_CTL_ADD, e->fd, &event);
	event.events = EPOLLOUT | (e->m.tx_waiting == WITH_EPOLL_EDGE ? EPOLLET : 0);
	epoll_ctl(e->epoll_tx, EPOLL_CTL_ADD, e->fd, &event);
}

static void prepare(struct end *e)
{
	bool nonblock = e->m.tx_waiting != BLOCKING && e->m.tx_waiting != WITH_TIMEOUT && e->m.rx_waiting != BLOCKING &&
			e->m.rx_waiting != WITH_TIMEOUT;
	struct timeval brief = { .tv_usec = 2000 };

	if (nonblock)
		fcntl(e->fd, F_SETFL, fcntl(e->fd, F_GETFL) | O_NONBLOCK);
	if (e->m.rx_waiting == WITH_TIMEOUT)
		setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof(brief));
	if (e->m.tx_waiting == WITH_TIMEOUT)
		setsockopt(e->fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof(brief));
	/* Else a message in two calls waits for a delayed acknowledgement, at every turn. */
	setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	e->tx_buf = malloc(LARGEST);
	e->rx_buf = malloc(LARGEST);
	e->want = malloc(LARGEST);
}

static struct manner choose(uint64_t *rng)
{
	static const unsigned sizes[] = { 1, 16, 300, 4096, 70000, LARGEST };
	struct manner m = {
		.tx_waiting = pick(rng, NR_WAITING),
		.rx_waiting = pick(rng, NR_WAITING),
		.sending = pick(rng, NR_SENDING),
		.receiving = pick(rng, NR_RECEIVING),
		.sharing = pick(rng, NR_SHARING),
		.largest = sizes[pick(rng, 6)],
	};

	/* Only calls that take flags can be asked not to wait on a blocking socket. */
	if (m.sending != SEND && m.sending != SENDMSG && m.sending != SENDMMSG && m.tx_waiting != WITH_TIMEOUT)
		m.tx_waiting = m.rx_waiting != BLOCKING && m.rx_waiting != WITH_TIMEOUT ? m.rx_waiting : BLOCKING;
	if ((m.receiving == READ || m.receiving == READV) && m.rx_waiting != WITH_TIMEOUT &&
	    (m.tx_waiting == BLOCKING || m.tx_waiting == WITH_TIMEOUT))
		m.rx_waiting = BLOCKING;
	m.total = (1 + pick(rng, 2000)) * (uint64_t)m.largest;
	if (m.total > (8u << 20))
		m.total = 8u << 20;
	return m;
}

static int listener(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)at, len) || listen(fd, 1) || getsockname(fd, (struct sockaddr *)at, &len)) {
		perror("hammer: listening");
		_exit(1);
	}
	return fd;
}

static int one_round(void)
{
	uint64_t rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
	struct end ends[2] = { { .name = "accepting" }, { .name = "connecting", .first = true } };
	static const unsigned turns[] = { 1, 8, 700, 30000, 500000 };
	struct sockaddr_in at;
	uint64_t turn;
	bool in_turns;
	int listening, status;
	pid_t child;

	for (int i = 0; i < 2; i++) {
		ends[i].m = choose(&rng);
		ends[i].tx.state = random_next(&rng);
		ends[i].rng = random_next(&rng);
	}
	turn = turns[pick(&rng, 5)];
	for (int i = 0; i < 2; i++) {
		/* Turns of a byte over megabytes would take for ever. */
		if (ends[i].m.total > turn * 3000)
			ends[i].m.total = turn * 3000;
		ends[i].turn = turn;
	}
	for (int i = 0; i < 2; i++) {
		ends[i].expected = ends[1 - i].m.total;
		ends[i].rx = (struct stream){ .state = ends[1 - i].tx.state };
	}
	/* Who sends all before it reads must have a peer that reads meanwhile: both take turns, or both have two hands. */
	in_turns = pick(&rng, 2);
	for (int i = 0; i < 2; i++) {
		bool two_hands = ends[i].m.sharing == TWO_THREADS || ends[i].m.sharing == CHILD_SENDS;

		if (in_turns && two_hands)
			ends[i].m.sharing = ends[i].m.sharing == TWO_THREADS ? ALONE : CHILD_GOES_ON;
		if (!in_turns && !two_hands)
			ends[i].m.sharing = ends[i].m.sharing == ALONE ? TWO_THREADS : CHILD_SENDS;
		if (!in_turns)
			ends[i].turn = 0;
	}
	listening = listener(&at);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(listening);
	}
	alarm(WATCHDOG_SECONDS);
	struct end *e = watched = &ends[child == 0];

	if (child == 0) {
		e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		/* Some programs register a socket before they connect it. */
		if (seed % 2)
			join_sets(e);
		if (connect(e->fd, (struct sockaddr *)&at, sizeof(at)))
			fail(e, "connect: %s", strerror(errno));
		if (seed % 2 == 0)
			join_sets(e);
	} else {
		e->fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		if (e->fd < 0)
			fail(e, "accept: %s", strerror(errno));
		join_sets(e);
	}
	prepare(e);
	run_end(e);
	close(e->fd);
	if (child == 0)
		exit(0);
	close(listening);
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "hammer: seed %llu: the connecting end ended with %d\n", (unsigned long long)seed, status);
		return 1;
	}
	return 0;
}

/* Whatever was interrupted stays so: printing from here cannot make it worse. */
static void hung(int sig)
{
	fail(watched, "hung");
}

int main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, count = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	int bad = 0;

	signal(SIGALRM, hung);
	signal(SIGPIPE, SIG_IGN);
	/* Each round in a process of its own: descriptors, threads and what a preload keeps begin anew. */
	for (seed = first; seed < first + count; seed++) {
		pid_t round = fork();
		int status;

		if (round == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			exit(one_round());
		}
		if (round < 0 || waitpid(round, &status, 0) != round)
			return 1;
		if (status) {
			fprintf(stderr, "hammer: seed %llu failed\n", (unsigned long long)seed);
			bad++;
		}
	}
	return bad ? 1 : 0;
}
