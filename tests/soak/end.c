/* SPDX-License-Identifier: MIT */
/* One end of a connection: its next step in each direction, and its end. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soak.h"

enum { SENDS = 1, RECEIVES = 2 };	/* whose steps */

struct row *end_row(const struct end *e)
{
	return &board->rows[e->conn][e->side];
}

void end_init(struct end *e, uint32_t conn, int side, int fd)
{
	*e = (struct end){ .conn = conn, .side = side, .fd = fd, .turn_sock = -1 };
	plan_make(&e->plan, conn);
	end_row(e)->worker = e->plan.worker[side];
	end_tell(e, "opened");
	atomic_store(&end_row(e)->state, ROW_OPEN);
}

void end_tell(struct end *e, const char *op)
{
	struct row *row = end_row(e);

	row->pid = getpid();
	row->fd = e->fd;
	row->tx_pos = e->tx_pos;
	row->rx_pos = e->rx_pos;
	row->nr_steps = e->tx_step + e->rx_step;
	if (op)
		snprintf(row->op, sizeof(row->op), "%s", op);
}

void end_failed(struct end *e, const char *format, ...)
{
	struct row *row = end_row(e);
	va_list ap;

	if (atomic_load(&row->state) != ROW_FAILED) {
		va_start(ap, format);
		vsnprintf(row->error, sizeof(row->error), format, ap);
		va_end(ap);
	}
	atomic_store(&row->state, ROW_FAILED);
	e->tx_over = e->rx_over = true;
}

/* The connection ends before its streams do. Whether it may is for the driver to say. */
static void end_cut(struct end *e, int error)
{
	if (!e->cut)
		e->cut_by = error;
	e->cut = true;
}

bool end_wants_out(const struct end *e)
{
	if (e->tx_over)
		return false;
	return plan_limit(&e->plan, e->conn, e->side, e->rx_pos) > e->tx_pos || (!e->urgent_sent && e->tx_pos == e->plan.urgent_pos[e->side]);
}

bool end_wants_in(const struct end *e)
{
	return !e->rx_over;
}

static bool end_urgent(struct end *e)
{
	uint64_t at = e->plan.urgent_pos[e->side];
	ssize_t n;

	if (e->urgent_sent || e->tx_pos != at)
		return true;
	end_tell(e, "send urgent");
	n = send(e->fd, "!", 1, MSG_OOB | (e->blocking ? 0 : MSG_DONTWAIT));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n < 0) {
		end_cut(e, errno);
		e->tx_over = true;
	}
	e->urgent_sent = true;
	return true;
}

bool end_send(struct end *e)
{
	struct rng r = { mix(stream_key(e->conn, e->side), (uint64_t)e->tx_step << 2 | SENDS) };
	uint64_t to = plan_limit(&e->plan, e->conn, e->side, e->rx_pos), urgent = e->plan.urgent_pos[e->side];
	size_t len = rng_log(&r, e->plan.longest[e->side]);
	ssize_t n;

	if (!end_urgent(e))
		return errno == EINTR;
	if (urgent > e->tx_pos && urgent < to)
		to = urgent;
	if (len > to - e->tx_pos)
		len = to - e->tx_pos;
	if (e->tx_over || !len)
		return true;
	n = step_send(e, &r, len);
	if (n == -EAGAIN)
		return false;
	if (n == -EINTR)
		return true;
	e->tx_step++;
	if (n < 0) {
		end_cut(e, (int)-n);
		e->tx_over = true;
	} else {
		e->tx_pos += (uint64_t)n;
	}
	end_tell(e, NULL);
	return true;
}

bool end_receive(struct end *e)
{
	struct rng r = { mix(stream_key(e->conn, e->side), (uint64_t)e->rx_step << 2 | RECEIVES) };
	size_t len = rng_log(&r, e->plan.longest[!e->side]);
	ssize_t n = step_receive(e, &r, len);

	if (n == -EAGAIN)
		return false;
	if (n == -EINTR)
		return true;
	e->rx_step++;
	if (n > 0)
		e->rx_pos += (uint64_t)n;
	else
		e->rx_over = true;
	if (n < 0 || (!n && e->rx_pos < e->plan.total[!e->side]))
		end_cut(e, (int)-n);
	if (e->rx_pos > e->plan.total[!e->side])
		end_failed(e, "%zd bytes more than were sent, at %llu", n, (unsigned long long)e->rx_pos);
	end_tell(e, NULL);
	/* Who treats a short read as the last one asks no more before the next event. */
	return !(e->plan.watch[e->side] == WATCH_EDGE_SHORT && n > 0 && (size_t)n < len && !e->hung_up && !e->stops_short &&
		 e->plan.urgent_pos[!e->side] == UINT64_MAX);
}

bool end_fate(const struct end *e)
{
	const struct plan *p = &e->plan;

	if (p->fate == FATE_WHOLE || e->side != p->fate_side)
		return false;
	return (p->fate == FATE_RESET ? e->tx_pos : e->rx_pos) >= p->fate_pos;
}

void end_close(struct end *e, enum row_state state)
{
	struct row *row = end_row(e);
	struct linger reset = { 1, 0 };

	end_tell(e, "close");
	if (state == ROW_ABORTED && e->plan.fate == FATE_RESET)
		setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	turn_end(e);
	close(e->fd);
	e->closed = true;
	row->ended_by = e->cut_by;
	if (atomic_load(&row->state) != ROW_FAILED)
		atomic_store(&row->state, state);
	end_tell(e, "closed");
}

void end_shut(struct end *e)
{
	const struct plan *p = &e->plan;

	/* A direction that will not be asked for more has ended, too. */
	if (e->rx_over && e->cut)
		e->tx_over = true;
	if (e->tx_over || e->tx_pos < p->total[e->side] || (!e->urgent_sent && p->urgent_pos[e->side] == e->tx_pos))
		return;
	end_tell(e, "shutdown");
	if (!p->late_end[e->side] && shutdown(e->fd, SHUT_WR))
		end_cut(e, errno);
	e->tx_over = true;
}

bool end_finish(struct end *e)
{
	if (end_fate(e)) {
		end_close(e, ROW_ABORTED);
		return true;
	}
	end_shut(e);
	if (!e->tx_over || !e->rx_over)
		return false;
	end_close(e, e->cut ? ROW_CUT : ROW_DONE);
	return true;
}
