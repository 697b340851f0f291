/* SPDX-License-Identifier: MIT */
/* A process that goes round its ends without ever blocking in one, and sleeps, for as long as it takes, when none has anything to do. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "soak.h"

enum { OURS = 4, NR_EVENTS_READ = 8 };

static bool in_set(const struct end *e)
{
	return e->plan.watch[e->side] != WATCH_TOP;
}

static bool edge(const struct end *e)
{
	return e->plan.watch[e->side] == WATCH_EDGE || e->plan.watch[e->side] == WATCH_EDGE_SHORT;
}

static int set_of(const struct worker *w, const struct end *e)
{
	return edge(e) ? w->edge : w->level;
}

static uint32_t wanted(const struct end *e)
{
	uint32_t events = edge(e) ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : 0;

	if (edge(e))
		return events;
	events = (end_wants_in(e) ? (uint32_t)EPOLLIN : 0) | (end_wants_out(e) ? (uint32_t)EPOLLOUT : 0);
	return events | (e->plan.watch[e->side] == WATCH_ONESHOT ? EPOLLONESHOT : 0);
}

static void set_change(struct worker *w, struct end *e, int op)
{
	struct epoll_event ev = { .events = wanted(e), .data.ptr = e };

	if (epoll_ctl(set_of(w, e), op, e->fd, &ev))
		end_failed(e, "epoll_ctl %d of %d: errno %d", op, e->fd, errno);
}

void worker_add(struct worker *w, struct end *e)
{
	w->ends[w->nr_ends++] = e;
	e->ready_in = e->ready_out = false;
	if (in_set(e) && !e->waiting)
		set_change(w, e, EPOLL_CTL_ADD);
}

/* What the kernel does by itself at the last close, it cannot do while a relative has the descriptor, too. */
void worker_drop(struct worker *w, struct end *e)
{
	if (in_set(e) && !e->waiting && !e->closed)
		set_change(w, e, EPOLL_CTL_DEL);
	for (int i = 0; i < w->nr_ends; i++) {
		if (w->ends[i] != e)
			continue;
		w->ends[i] = w->ends[--w->nr_ends];
		return;
	}
}

static void ready(struct end *e, uint32_t events)
{
	e->ready_in |= (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
	e->ready_out |= (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
	e->hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
}

/* A descriptor that a relative has, too, stays in the set when it is closed here. */
static bool is_here(const struct worker *w, const struct end *e)
{
	for (int i = 0; i < w->nr_ends; i++)
		if (w->ends[i] == e)
			return true;
	return false;
}

static void hear_set(struct worker *w, int set)
{
	struct epoll_event ev[NR_EVENTS_READ];
	int nr = epoll_wait(set, ev, NR_EVENTS_READ, 0);

	for (int i = 0; i < nr; i++)
		if (is_here(w, ev[i].data.ptr))
			ready(ev[i].data.ptr, ev[i].events);
}

/* One sleep, in poll, ppoll, select or pselect, over all that this process waits for. */
static int top_wait(struct worker *w, struct pollfd *fds, int nr, int timeout)
{
	struct timespec ts = { timeout / 1000, timeout % 1000 * 1000000L };
	struct timeval tv = { ts.tv_sec, ts.tv_nsec / 1000 };
	uint64_t kind = mix((uint64_t)w->index, w->looks) % 4;
	fd_set in, out;
	int most = 0, said;

	if (kind == 0)
		return poll(fds, (nfds_t)nr, timeout);
	if (kind == 1)
		return ppoll(fds, (nfds_t)nr, timeout < 0 ? NULL : &ts, NULL);
	FD_ZERO(&in);
	FD_ZERO(&out);
	for (int i = 0; i < nr; i++) {
		if (fds[i].fd < 0)
			continue;
		if (fds[i].events & POLLIN)
			FD_SET(fds[i].fd, &in);
		if (fds[i].events & POLLOUT)
			FD_SET(fds[i].fd, &out);
		if (fds[i].fd >= most)
			most = fds[i].fd + 1;
	}
	said = kind == 2 ? select(most, &in, &out, NULL, timeout < 0 ? NULL : &tv) :
			   pselect(most, &in, &out, NULL, timeout < 0 ? NULL : &ts, NULL);
	for (int i = 0; i < nr; i++)
		fds[i].revents = 0;
	for (int i = 0; i < nr && said > 0; i++)
		if (fds[i].fd >= 0)
			fds[i].revents = (short)((FD_ISSET(fds[i].fd, &in) ? POLLIN : 0) | (FD_ISSET(fds[i].fd, &out) ? POLLOUT : 0));
	return said;
}

/* -1 sleeps; 0 looks only, since there is something to do already; 1 is for who has to let a look pass. */
static int patience(const struct worker *w)
{
	int timeout = -1;

	for (int i = 0; i < w->nr_ends; i++) {
		const struct end *e = w->ends[i];

		if (e->waiting)
			continue;
		if (e->ready_in && end_wants_in(e))
			return 0;
		if (e->ready_out && end_wants_out(e))
			timeout = 1;
	}
	return timeout;
}

static void wait_once(struct worker *w)
{
	struct pollfd fds[MAX_ENDS + OURS];
	int nr = w->nr_ends, said;

	for (int i = 0; i < nr; i++) {
		struct end *e = w->ends[i];

		if (e->waiting)
			fds[i] = (struct pollfd){ e->turn_sock, POLLIN, 0 };
		else
			fds[i] = (struct pollfd){ in_set(e) ? -1 : e->fd, in_set(e) ? 0 : (short)wanted(e), 0 };
		if (!e->waiting && in_set(e) && !edge(e))
			set_change(w, e, EPOLL_CTL_MOD);
	}
	fds[nr] = (struct pollfd){ w->listener, POLLIN, 0 };
	fds[nr + 1] = (struct pollfd){ w->inbox, POLLIN, 0 };
	fds[nr + 2] = (struct pollfd){ w->level, POLLIN, 0 };
	fds[nr + 3] = (struct pollfd){ w->edge, POLLIN, 0 };
	said = top_wait(w, fds, nr + OURS, patience(w));
	w->looks++;
	if (said < 0 && errno != EINTR)
		abort();
	if (said <= 0)
		return;
	if (fds[nr + 2].revents)
		hear_set(w, w->level);
	if (fds[nr + 3].revents)
		hear_set(w, w->edge);
	for (int i = 0; i < nr; i++)
		if (!w->ends[i]->waiting && !in_set(w->ends[i]))
			ready(w->ends[i], (uint32_t)fds[i].revents);
	/* From here on the list changes. */
	for (int i = nr - 1; i >= 0; i--)
		if (w->ends[i]->waiting && fds[i].revents)
			turn_take(w, w->ends[i]);
	if (fds[nr].revents) {
		struct end *e = malloc(sizeof(*e));

		if (worker_accept(w, e))
			worker_add(w, e);
		else
			free(e);
	}
	if (fds[nr + 1].revents)
		worker_hear(w);
}

/* A step each way, if it may. The end may be gone afterwards. */
static void visit(struct worker *w, struct end *e)
{
	bool more;

	if (++e->looks % e->plan.pace[e->side] == 0 && e->ready_out && end_wants_out(e)) {
		more = end_send(e);
		e->ready_out = edge(e) && more;
	}
	if (e->ready_in && end_wants_in(e)) {
		more = end_receive(e);
		e->ready_in = edge(e) && more;
	}
	if (!edge(e))
		e->ready_in = e->ready_out = false;
	if (end_finish(e)) {
		worker_drop(w, e);
		free(e);
		return;
	}
	if (!event_due(w, e) && e->turn_sock >= 0 && ++e->turn_steps >= 5)
		turn_give(w, e);
}

void loop_run(struct worker *w)
{
	while (!w->over || w->nr_ends) {
		worker_begin(w);
		while (worker_reap(w, false))
			;
		wait_once(w);
		for (int i = w->nr_ends - 1; i >= 0; i--)
			if (i < w->nr_ends && !w->ends[i]->waiting)
				visit(w, w->ends[i]);
	}
}
