/* SPDX-License-Identifier: MIT */
/* A process in which each end has a thread or two, which block. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soak.h"

struct talker {
	struct end end;
	struct worker *w;
	pthread_mutex_t lock;
	pthread_cond_t heard;	/* something came, or the end of it */
};

static _Atomic int nr_talkers;
static int talker_ended = -1;	/* an eventfd, for the main thread */

static void one_thread(struct talker *t)
{
	struct end *e = &t->end;

	while (!end_finish(e)) {
		bool can_hear = plan_limit(&e->plan, e->conn, !e->side, e->tx_pos) > e->rx_pos;

		if (end_wants_out(e) && (!can_hear || !end_wants_in(e) || mix(e->conn, e->tx_step + e->rx_step) % 2))
			end_send(e);
		else if (end_wants_in(e))
			end_receive(e);
		event_due(t->w, e);
	}
}

/* Both directions have to end, since the other thread may be in a call. */
static bool fate_came(struct end *e)
{
	if (!end_fate(e))
		return false;
	e->tx_over = e->rx_over = true;
	shutdown(e->fd, SHUT_RDWR);
	return true;
}

static void *sender(void *arg)
{
	struct talker *t = arg;
	struct end *e = &t->end;

	for (;;) {
		end_shut(e);
		if (e->tx_over || fate_came(e))
			return NULL;
		pthread_mutex_lock(&t->lock);
		while (!end_wants_out(e) && !e->tx_over && !e->rx_over)
			pthread_cond_wait(&t->heard, &t->lock);
		pthread_mutex_unlock(&t->lock);
		if (end_wants_out(e))
			end_send(e);
		else if (e->rx_over && e->tx_pos < e->plan.total[e->side])
			e->tx_over = true;
		event_due(t->w, e);
	}
}

static void two_threads(struct talker *t)
{
	struct end *e = &t->end;
	pthread_t thread;

	if (pthread_create(&thread, NULL, sender, t))
		abort();
	while (!e->rx_over && !fate_came(e)) {
		end_receive(e);
		pthread_mutex_lock(&t->lock);
		pthread_cond_broadcast(&t->heard);
		pthread_mutex_unlock(&t->lock);
	}
	pthread_mutex_lock(&t->lock);
	pthread_cond_broadcast(&t->heard);
	pthread_mutex_unlock(&t->lock);
	pthread_join(thread, NULL);
	end_finish(e);
}

static void *talk(void *arg)
{
	struct talker *t = arg;
	uint64_t one = 1;

	if (t->end.plan.two_threads[t->end.side])
		two_threads(t);
	else
		one_thread(t);
	free(t);
	atomic_fetch_sub(&nr_talkers, 1);
	if (write(talker_ended, &one, sizeof(one)) < 0)
		abort();
	return NULL;
}

static int threads_running(void)
{
	return atomic_load(&nr_talkers);
}

void threads_add(struct worker *w, const struct end *e)
{
	struct talker *t = malloc(sizeof(*t));
	pthread_t thread;

	*t = (struct talker){ .end = *e, .w = w, .lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER };
	t->end.blocking = true;
	atomic_fetch_add(&nr_talkers, 1);
	if (pthread_create(&thread, NULL, talk, t))
		abort();
	pthread_detach(thread);
}

void threads_run(struct worker *w)
{
	talker_ended = eventfd(0, EFD_CLOEXEC);
	while (!w->over || threads_running()) {
		struct pollfd fds[3] = { { w->listener, POLLIN, 0 }, { w->inbox, POLLIN, 0 }, { talker_ended, POLLIN, 0 } };
		struct end e;
		uint64_t count;

		worker_begin(w);
		if (poll(fds, 3, -1) <= 0)
			continue;
		if (fds[0].revents && worker_accept(w, &e))
			threads_add(w, &e);
		if (fds[1].revents)
			worker_hear(w);
		if (fds[2].revents && read(talker_ended, &count, sizeof(count)) < 0)
			abort();
	}
	close(talker_ended);
}
