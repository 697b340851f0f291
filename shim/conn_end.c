/* SPDX-License-Identifier: MIT */
/*
 * The ends: shutdown, close, exec, the end of the process, a peer that lies. The kernel's socket carries every end; what is done here
 * makes it say of the ring's bytes what it would have said of its own.
 */
#include "shim/conn_end.h"

#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/log.h"
#include "shim/nego.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/retreat_far_go.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define LOOK_FRAMES 16
#define DISCONNECTS_MOST 1000

void conn_receiver_goes(struct conn *c)
{
	/*
	 * On one host the bell of who has gone refuses. A far one is asked by the next send: its socket may still be there, held by a wait of another
	 * thread that data would end.
	 */
	if (!exchange(&c->tx.gone_hint, 1) && conn_is_far(c))
		store_relaxed(&c->tx.probe_due, 1);
	store_relaxed(&c->tx.alert, 1);
}

void conn_ring_said(struct conn *c, int fd, uint32_t said)
{
	if (said & WAKE_ATTN_KERNEL)
		conn_receiver_goes(c);
	if (said & WAKE_ATTN_WORDS) {
		/* A link that has died of it: what was published is here alone, and the program may never call again. */
		if (conn_is_far(c))
			conn_pump_far(c, 0);
		conn_take_tx_attention_locked(c, fd);
		retreat_push(c, fd);
	}
	if (said & RING_UNHEARD)
		conn_keep_error(c, conn_write_probe(c, fd));
}

void conn_set_pending(struct conn *c, int err)
{
	store_relaxed(&c->rx.error_told, 1);
	store_relaxed(&c->rx.pending_errno, err);
	fetch_add(&c->rx.ends, 1);
	store_relaxed(&c->tx.alert, 1);
}

void conn_keep_error(struct conn *c, ssize_t n)
{
	if (n >= 0 || n == -EAGAIN || n == -EINTR)
		return;
	/* Said of every send once the error is told, or noted, and of one behind our own end. */
	if (n == -EPIPE && (load_relaxed(&c->rx.error_told) || load_relaxed(&c->tx.shut)))
		return;
	conn_set_pending(c, (int)-n);
}

void conn_error_taken(struct conn *c)
{
	store_relaxed(&c->rx.error_told, 1);
	store_relaxed(&c->tx.alert, 1);
}

void conn_kernel_told(struct conn *c, int err)
{
	if (err != ECONNRESET && err != ETIMEDOUT && (err != EPIPE || load_relaxed(&c->tx.shut)))
		return;
	store_relaxed(&c->rx.error_told, 1);
	store_relaxed(&c->rx.pending_errno, 0);
}

void conn_peer_ended(struct conn *c)
{
	if (load_relaxed(&c->tx.peer_ended))
		return;
	store_relaxed(&c->tx.probe_due, 1);
	store_relaxed(&c->tx.peer_ended, 1);
	store_relaxed(&c->tx.alert, 1);
}

/* A frame that has come, of which the kind or the position was not known before. False: it cannot be true. */
static bool take_far_frame(struct conn *c, int fd, const struct frame_due *due)
{
	if (due->type == FRAME_PROBE)
		return true;
	return due->type == FRAME_FIN ? conn_fin_came(c, due->pos) : retreat_far_take(c, fd, due);
}

bool conn_look(struct conn *c, int fd)
{
	store_relaxed(&c->rx.looks_skipped, 0);
	if (unlikely(load_relaxed(&c->rx.leaving)) && !retreat_far_settle(c)) {
		conn_lied(c, fd, REASON_BAD_POSITION);
		return true;
	}
	/* Its last frame has come, and another thread is in the pump. */
	if (load_relaxed(&c->rx.leaving) & LEAVING_RETREAT) {
		retreat_left(c);
		return false;
	}
	for (int i = 0; i < LOOK_FRAMES; i++) {
		struct frame_due due = { FRAME_PROBE, 0, .or_far = conn_is_far(c) };

		switch (frame_receive(c, fd, &due, NULL)) {
		case FRAME_TAKEN:
			c->rx.frames++;
			if (!take_far_frame(c, fd, &due)) {
				conn_lied(c, fd, REASON_BAD_POSITION);
				return true;
			}
			/* What follows is no frame. */
			if (load_relaxed(&c->rx.leaving) & LEAVING_RETREAT) {
				retreat_left(c);
				return false;
			}
			continue;
		case FRAME_NOT_YET:
			return false;
		case FRAME_NONE:
			/* The words after the bytes: what is sent again comes behind the word that says so. */
			if (retreat_far_heard(c))
				return false;
			conn_lied(c, fd, REASON_BAD_FRAME);
			return true;
		case FRAME_END:
			if (conn_is_far(c) && !load_relaxed(&c->rx.pending_errno)) {
				enum fin_sight sight = conn_fin_sight(c);

				/* By TCP, which goes on where the ring was left. */
				if (sight == FIN_NEVER && retreat_far_heard(c))
					return false;
				if (sight == FIN_MISSING)
					return false;
				/* Where nothing is wanted any more, the peer tells no end; a reset is told once. */
				if (sight == FIN_NEVER && !(load_relaxed(&c->rx.shut) && load_relaxed(&c->tx.shut)) &&
				    !load_relaxed(&c->rx.error_told)) {
					conn_cut(c, fd, REASON_LINK_LOST);
					return true;
				}
			}
			fetch_add(&c->rx.ends, 1);
			conn_take_rx_attention(c);
			conn_rx_set(c, RX_ENDED);
			conn_peer_ended(c);
			conn_check_killed(c, fd);
			ready_changed(c);
			return true;
		}
	}
	return false;
}

static bool is_killed(struct conn *c)
{
	/* The peer's words first: who takes one away has noted it before. */
	if ((ring_rx_attention(&c->link.rx) | ring_tx_attention(&c->link.tx)) & WAKE_ATTN_KERNEL)
		return false;
	/* What the kernel tells is our own end, shut for reading by the program: of the peer's only a probe can tell. */
	if (load_relaxed(&c->rx.shut))
		return false;
	/* Between hosts TCP's end may outrun the word, and a link that lives says that the peer does. */
	if (conn_is_far(c) && !conn_far_is_dead(c))
		return false;
	return !c->rx.fin_known && !load_acquire(&c->rx.told_end) && !load_acquire(&c->tx.gone_hint) && conn_tx_on_ring(c) && conn_tx_untaken(c);
}

bool conn_check_killed(struct conn *c, int fd)
{
	if (load_relaxed(&c->rx.dead) || !(is_killed(c) || lane_is_reset(c->link.rx.ctl)))
		return false;
	store_relaxed(&c->rx.dead, 1);
	store_relaxed(&c->tx.alert, 1);
	/* A reset that the kernel has told is not told again. */
	if (!load_relaxed(&c->rx.error_told))
		conn_set_pending(c, ECONNRESET);
	sys_call2(SYS_shutdown, fd, SHUT_RDWR);
	ready_changed(c);
	return true;
}

/* The close that follows is to be a reset. */
static void linger_not(struct conn *c, int fd)
{
	struct linger reset = { .l_onoff = 1, .l_linger = 0 };
	unsigned len = sizeof(c->linger);

	if (!c->linger_ours)
		c->linger_ours = !sys_getsockopt(fd, SOL_SOCKET, SO_LINGER, &c->linger, &len);
	sys_setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

/* Kernels of 2023 (6.4 to 6.6, and their like of long-term series) do not disconnect a socket in which a thread waits: it is woken and let go. */
static bool disconnects(int fd)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	long r = -EBUSY;

	for (int i = 0; i < DISCONNECTS_MOST && r == -EBUSY; i++) {
		if (i) {
			sys_call2(SYS_shutdown, fd, SHUT_RD);
			sys_call0(SYS_sched_yield);
		}
		r = sys_call3(SYS_connect, fd, &nobody, sizeof(nobody.sa_family));
	}
	return r == 0;
}

void conn_reset_kernel(struct conn *c, int fd)
{
	unsigned len = sizeof(int);
	int forgotten;

	if (!disconnects(fd)) {
		/* A peer in our memory reads that first. Another one hears nothing until the close, which is better than an end. */
		if (conn_is_linked(c))
			lane_reset(c->link.tx.ctl);
		sys_call2(SYS_shutdown, fd, conn_is_far(c) ? SHUT_RD : SHUT_RDWR);
		linger_not(c, fd);
	}
	/* The error that we tell stands for it. */
	sys_getsockopt(fd, SOL_SOCKET, SO_ERROR, &forgotten, &len);
}

void conn_timed_out(struct conn *c, int fd)
{
	log_info("connection %u: the peer took nothing within TCP_USER_TIMEOUT", c->index);
	store_relaxed(&c->rx.dead, 1);
	conn_set_pending(c, ETIMEDOUT);
	/* What has come by TCP is read before the error, as from the kernel: so that makes an end of it, which the peer is told to be none. */
	if (conn_rx_on_ring(c)) {
		conn_reset_kernel(c, fd);
	} else {
		lane_reset(c->link.tx.ctl);
		sys_call2(SYS_shutdown, fd, SHUT_RDWR);
	}
	if (load_relaxed(&c->rx.state) == RX_RING)
		conn_rx_set(c, RX_ENDED);
	/* A peer that only asks its rings now and then has to hear of it. */
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_KERNEL);
	ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_KERNEL);
	ready_changed(c);
}

void conn_lied(struct conn *c, int fd, enum reason why)
{
	log_warn("connection %u: the peer broke the protocol (%s)", c->index, reason_word(why));
	store_relaxed(&c->reason, (uint8_t)why);
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->pinned, 1);
	store_relaxed(&c->rx.dead, 1);
	/* A lane of the peer's that is on TCP must not take it for an end. */
	conn_reset_kernel(c, fd);
	c->rx.proven = 0;
	conn_set_pending(c, ECONNRESET);
	if (load_relaxed(&c->rx.state) != RX_ENDED)
		conn_rx_set(c, RX_ENDED);
	ready_changed(c);
}

/* Does the program leave bytes unread that the kernel does not know of? Takes frames away on the way. */
static bool leaves_unread(struct conn *c, int fd)
{
	if (load_relaxed(&c->rx.state) == RX_ACKED && switch_read_cap(c) == 0)
		switch_take(c, fd);
	if (retreat_left(c) || load_relaxed(&c->rx.state) == RX_FOLLOW)
		retreat_follow(c, fd);
	else if (load_relaxed(&c->rx.state) == RX_RING)
		conn_look(c, fd);
	if (conn_rx_on_ring(c))
		return ring_rx_avail(&c->link.rx) > 0;
	return c->rx.stash_len && load_relaxed(&c->rx.state) == RX_SEEK;
}

/* Does the program want its close to be a reset? Then no end is told before it. */
static bool resets_anyway(const struct conn *c, int fd)
{
	struct linger l = { 0 };
	unsigned len = sizeof(l);

	return conn_is_far(c) && sys_getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len) == 0 && l.l_onoff && !l.l_linger;
}

bool conn_end_waits(const struct conn *c, int fd)
{
	return conn_is_linked(c) && !resets_anyway(c, fd);
}

void conn_end_soon(struct conn *c, int fd)
{
	bool last = load_relaxed(&c->nr_holders) == 1;

	if (!conn_end_waits(c, fd))
		return;
	conn_fin_await(c, last);
	if (last)
		retreat_far_await(c, fd, now_ns() + (int64_t)options.patience_ms * 1000000);
}

/* Behind retreat_end_begin(). A link that dies in between, unlike one that was dead then, has left its last bytes unsent and the end untold. */
static bool tell_end(struct conn *c, int fd)
{
	return conn_fin_send(c, fd) == 0 || !conn_far_is_dead(c) || retreat_end_begin(c, fd);
}

void conn_end_lanes(struct conn *c, int fd)
{
	bool unread;

	if (!load_relaxed(&c->linked) || load_relaxed(&c->returned))
		return;
	if (conn_is_far(c))
		far_pump(c, 0);
	unread = leaves_unread(c, fd) || (!resets_anyway(c, fd) && !retreat_end_begin(c, fd));
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_KERNEL);
	ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_KERNEL);
	if (!unread && !resets_anyway(c, fd))
		unread = !tell_end(c, fd);
	else
		conn_fin_reset(c);
	if (unread)
		linger_not(c, fd);
}

void conn_exec_soon(struct conn *c, int fd)
{
	c->exec_soon = 1;
	if (!load_relaxed(&c->linked))
		return;
	switch_withdraw_tx(c);
	if (conn_is_far(c) && load_relaxed(&c->tx.state) == TX_FRAMING)
		conn_keep_error(c, switch_finish_frame(c, fd));
}

/* Of what is unread in the ring a peer on this host makes a reset by itself, as of a kill (conn_check_killed()). */
bool conn_exec_lanes(struct conn *c, int fd)
{
	bool unread;

	if (!load_relaxed(&c->linked) || load_relaxed(&c->returned))
		return true;
	if (conn_is_far(c) && load_relaxed(&c->tx.state) == TX_RING && !conn_far_is_dead(c))
		return false;
	unread = leaves_unread(c, fd) && conn_is_far(c);
	if (!retreat_sender_goes(c, fd) || unread)
		linger_not(c, fd);
	return true;
}

void conn_unend_lanes(struct conn *c, int fd)
{
	if (c->linger_ours)
		sys_setsockopt(fd, SOL_SOCKET, SO_LINGER, &c->linger, sizeof(c->linger));
	c->linger_ours = 0;
	c->exec_soon = 0;
	retreat_end_over(c);
}

void conn_tell_shut(struct conn *c)
{
	if (conn_is_linked(c) && load_relaxed(&c->rx.shut) && load_relaxed(&c->tx.shut))
		ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_KERNEL);
}

int conn_shutdown(struct conn *c, int fd, int how)
{
	/* Connecting to nowhere resets. */
	struct sockaddr reset = { .sa_family = AF_UNSPEC };
	bool locked, pushed = true;
	uint8_t was_shut;
	int r;

	if (how != SHUT_RD && conn_is_linked(c) && conn_hold(c, fd)) {
		conn_fin_await(c, true);
		conn_drop(c);
	}
	locked = conn_lock_both(c) == 0;
	was_shut = load_relaxed(&c->rx.shut);
	/* Closed by another thread, while this one waited for the locks. */
	if (locked && unlikely(fdtab_get(fd) != c)) {
		conn_unlock_both(c);
		return (int)sys_call2(SYS_shutdown, fd, how);
	}
	/*
	 * A frame that was begun and has no data behind it is left as it is: the peer finds its beginning, then the end, and
	 * knows that it is no data. The same goes for close.
	 */
	if (locked && how != SHUT_RD && conn_is_linked(c))
		ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_KERNEL);
	if (locked && how != SHUT_RD)
		pushed = retreat_end_begin(c, fd) && tell_end(c, fd);
	/* Before the kernel wakes another thread's wait: it must find the lane readable. */
	if (how == SHUT_RD || how == SHUT_RDWR)
		store_relaxed(&c->rx.shut, 1);
	r = (int)(pushed ? sys_call2(SYS_shutdown, fd, how) : sys_call3(SYS_connect, fd, &reset, sizeof(reset)));
	if (locked && how != SHUT_RD)
		retreat_end_over(c);
	if (r == 0 && locked) {
		if (how != SHUT_RD) {
			store_relaxed(&c->tx.shut, 1);
			if (load_relaxed(&c->tx.mode) != MODE_PLAIN && load_relaxed(&c->tx.mode) != MODE_PINNED &&
			    load_relaxed(&c->tx.state) != TX_SHUT)
				conn_tx_set(c, TX_SHUT);
			/* Once more: who looked between the word and the kernel's FIN has seen neither. Ours may sleep, too. */
			if (conn_is_linked(c)) {
				ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_KERNEL);
				bell_ring(c->link.tx.bells.bell_fd, &c->link.tx.bells.own);
			}
		}
		conn_tell_shut(c);
		ready_changed(c);
	}
	if (r < 0)
		store_relaxed(&c->rx.shut, was_shut);
	if (locked)
		conn_unlock_both(c);
	return r;
}

/* Behind the frame, which has not been read yet. */
static size_t ring_arrived(struct conn *c)
{
	ssize_t avail;

	conn_pump(c, 0);
	avail = ring_rx_avail_min(&c->link.rx, SIZE_MAX);
	return avail > 0 ? (size_t)avail : 0;
}

int conn_inq(struct conn *c, int fd)
{
	int kernel = 0;
	size_t cap, n;
	int r;

	if (conn_is_plain(c)) {
		r = (int)sys_call3(SYS_ioctl, fd, SIOCINQ, &kernel);
		return r < 0 ? r : kernel;
	}
	if (conn_lock_rx(c) < 0)
		return 0;
	if (load_relaxed(&c->rx.state) == RX_ACKED && switch_read_cap(c) == 0)
		switch_take(c, fd);
	/* That a far peer has left comes with a pump. */
	if (conn_rx_on_ring(c))
		conn_pump(c, 0);
	if (retreat_left(c) || load_relaxed(&c->rx.state) == RX_FOLLOW)
		retreat_follow(c, fd);
	if (conn_rx_on_ring(c)) {
		n = ring_arrived(c);
		if (load_relaxed(&c->rx.state) == RX_LEFT)
			n += retreat_inq_behind(c, fd);
	} else if (load_relaxed(&c->rx.state) == RX_FOLLOW) {
		n = 0;
	} else {
		cap = switch_read_cap(c);
		r = (int)sys_call3(SYS_ioctl, fd, SIOCINQ, &kernel);
		n = kernel > 0 ? (size_t)kernel : 0;
		if (load_relaxed(&c->rx.state) == RX_SEEK)
			n += c->rx.stash_len;
		/* What lies behind S is the program's if the announcement is void, else a frame; behind that, if the ring was left, what came twice, and more. */
		if (n >= cap + FRAME_SIZE && cap != SIZE_MAX && lane_left(c->link.rx.ctl) != LEFT_NOT)
			n = ring_arrived(c) + retreat_inq_behind(c, fd);
		else if (n > cap && !lane_voided(c->link.rx.ctl, c->rx.acked_seq))
			n = cap + (n >= cap + FRAME_SIZE ? ring_arrived(c) : 0);
		if (r < 0) {
			lane_unlock(&c->rx.lock);
			return r;
		}
	}
	lane_unlock(&c->rx.lock);
	return n > INT_MAX ? INT_MAX : (int)n;
}

int conn_inq_hint(struct conn *c, int fd)
{
	int n = conn_inq(c, fd);

	if (n < 0)
		n = 0;
	if (load_relaxed(&c->rx.shut) || n == INT_MAX)
		return n;
	return n + (load_relaxed(&c->rx.state) == RX_ENDED || sys_ready_now(fd, POLLRDHUP) & POLLRDHUP);
}

/*
 * Bytes in the ring lie in the receiver's memory: on TCP they would have been acknowledged, whether read or not. Those to a far receiver are
 * on their way until its device has acknowledged them.
 */
int conn_outq(struct conn *c, int fd)
{
	int kernel = 0;
	int r = (int)sys_call3(SYS_ioctl, fd, SIOCOUTQ, &kernel);

	if (r < 0 || !conn_tx_on_ring(c))
		return r < 0 ? r : kernel;
	return conn_is_far(c) ? conn_far_outq(c, fd) : 0;
}
