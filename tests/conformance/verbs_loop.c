/* SPDX-License-Identifier: MIT */
/*
 * An event loop as servers have it: non-blocking, one epoll registration, both directions at once. It goes on only when
 * epoll says so, hence one lost event ends it. The style decides what it relies on, as real programs do.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs.h"

enum { STALL_MS = 8000 };

static const struct style {
	const char *name;
	uint32_t events;
	bool stop_short;  /* a short read or write means drained or full: no call to see EAGAIN */
	bool rearm;       /* EPOLLONESHOT */
	bool by_need;     /* asks for EPOLLOUT only after EAGAIN, by EPOLL_CTL_MOD */
	bool again;       /* EPOLL_CTL_DEL and ADD for each round */
} styles[] = {
	{"edge", EPOLLIN | EPOLLOUT | EPOLLET},
	{"edge_short", EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, .stop_short = true},
	{"edge_need", EPOLLIN | EPOLLET, .by_need = true},
	{"level_need", EPOLLIN, .by_need = true},
	{"level_short", EPOLLIN, .by_need = true, .stop_short = true},
	{"oneshot", EPOLLIN | EPOLLOUT | EPOLLONESHOT, .rearm = true},
	{"oneshot_edge", EPOLLIN | EPOLLOUT | EPOLLONESHOT | EPOLLET, .rearm = true, .stop_short = true},
	{"again", EPOLLIN | EPOLLOUT, .again = true},
};

struct loop {
	struct actor *a;
	struct name *name;
	const struct style *style;
	int epfd;
	size_t total, chunk, in, out;
	uint32_t sum_in, sum_out;
	bool readable, writable, wants_out;
	int error;
};

static const struct style *style_find(const char *name)
{
	for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++)
		if (!strcmp(styles[i].name, name))
			return &styles[i];
	bad_step("unknown style", name);
}

static void loop_register(struct loop *l, int op)
{
	struct epoll_event event = {.events = l->style->events | (l->wants_out ? EPOLLOUT : 0), .data.u64 = 77};

	if (epoll_ctl(l->epfd, op, l->name->fd, &event))
		l->error = errno;
}

static void loop_read(struct loop *l)
{
	while (l->readable && l->in < l->total && !l->error) {
		size_t want = l->total - l->in < l->chunk ? l->total - l->in : l->chunk;
		ssize_t n = recv(l->name->fd, l->a->buf, want, 0);

		if (n < 0 && errno == EAGAIN) {
			l->readable = false;
			return;
		}
		if (n <= 0) {
			l->error = n ? errno : ENODATA;
			return;
		}
		l->sum_in = bytes_sum(l->sum_in, l->a->buf, (size_t)n);
		l->in += (size_t)n;
		if (l->style->stop_short && (size_t)n < want)
			l->readable = false;
	}
}

static void loop_write(struct loop *l)
{
	while (l->writable && l->out < l->total && !l->error) {
		size_t len = l->total - l->out < l->chunk ? l->total - l->out : l->chunk;
		ssize_t n;

		bytes_pattern(l->a, l->name, l->name->sent_pos, l->a->buf, len);
		n = send(l->name->fd, l->a->buf, len, MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN) {
			l->writable = false;
			return;
		}
		if (n < 0) {
			l->error = errno;
			return;
		}
		l->sum_out = bytes_sum(l->sum_out, l->a->buf, (size_t)n);
		l->out += (size_t)n;
		l->name->sent_pos += (uint64_t)n;
		if (l->style->stop_short && (size_t)n < len)
			l->writable = false;
	}
}

static void loop_wait(struct loop *l)
{
	struct epoll_event event;
	int n;

	if (l->style->rearm)
		loop_register(l, EPOLL_CTL_MOD);
	if (l->style->by_need && l->wants_out == (l->writable || l->out == l->total)) {
		l->wants_out = !l->wants_out;
		loop_register(l, EPOLL_CTL_MOD);
	}
	if (l->style->again) {
		epoll_ctl(l->epfd, EPOLL_CTL_DEL, l->name->fd, NULL);
		loop_register(l, EPOLL_CTL_ADD);
	}
	n = epoll_wait(l->epfd, &event, 1, STALL_MS);
	if (n <= 0) {
		l->error = n ? errno : ETIME;
		return;
	}
	l->readable |= event.events & (EPOLLIN | EPOLLHUP | EPOLLERR);
	l->writable |= event.events & EPOLLOUT;
}

void verb_loop(struct actor *a, int argc, char **argv)
{
	struct loop l = {.a = a, .name = name_find(a, argv[1]), .total = (size_t)parse_number(argv[2]),
			 .chunk = (size_t)parse_number(argv[3]), .style = style_find(argv[4]),
			 .sum_in = BYTES_SUM_START, .sum_out = BYTES_SUM_START};

	if (l.chunk > BUF_BYTES)
		bad_step("chunk too large", argv[3]);
	l.epfd = epoll_create1(EPOLL_CLOEXEC);
	fcntl(l.name->fd, F_SETFL, O_RDWR | O_NONBLOCK);
	l.writable = l.style->by_need;
	loop_register(&l, EPOLL_CTL_ADD);
	while ((l.in < l.total || l.out < l.total) && !l.error) {
		loop_read(&l);
		loop_write(&l);
		if ((l.in < l.total || l.out < l.total) && !l.error)
			loop_wait(&l);
	}
	close(l.epfd);
	fcntl(l.name->fd, F_SETFL, O_RDWR);
	say(a, "= out %zu sum %08x in %zu sum %08x%s%s", l.out, l.sum_out, l.in, l.sum_in, l.error ? " " : "",
	    l.error ? strerrorname_np(l.error) : "");
}
