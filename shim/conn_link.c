/* SPDX-License-Identifier: MIT */
/*
 * What the rendezvous and the waits see of a connection: the link when it comes, and its two lanes as something to
 * poll, arm and sleep on.
 */
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/conn.h"
#include "shim/conn_lock.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_probe.h"
#include "shim/idle.h"
#include "shim/log.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define READ_EVENTS (POLLIN | POLLRDNORM)
#define WRITE_EVENTS (POLLOUT | POLLWRNORM)

void conn_seek(struct conn *c)
{
	conn_tx_seek(c);
	conn_rx_seek(c);
}

void conn_unseek(struct conn *c)
{
	if (load_relaxed(&c->tx.state) == TX_SEEK)
		conn_tx_set(c, TX_TCP);
	if (load_relaxed(&c->rx.state) == RX_SEEK && !c->rx.stash_len)
		conn_rx_set(c, RX_TCP);
}

void conn_linked(struct conn *c, const uint64_t nonce[2], const uint64_t peer_nonce[2])
{
	for (int i = 0; i < 2; i++) {
		c->nonce[i] = nonce[i];
		c->peer_nonce[i] = peer_nonce[i];
	}
	conn_seek(c);
	/* Before it sends to a far peer a call has more to look at. */
	if (conn_is_far(c))
		store_relaxed(&c->tx.alert, 1);
	store_relaxed(&c->linked_at, now_ns());
	store_release(&c->linked, 1);
	log_info("connection %u: linked", c->index);
	/* An end that was told before there was a segment: the peer must not take the kernel's FIN for a death. */
	if (load_relaxed(&c->tx.shut)) {
		if (load_relaxed(&c->tx.state) != TX_SHUT)
			conn_tx_set(c, TX_SHUT);
		ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_KERNEL);
	}
	conn_tell_shut(c);
	switch_announce(c);
	idle_linked(c);
	ready_changed(c);
}

/* Whoever held the lane may have died between taking an arming away and ringing for it. */
void conn_tx_recover(struct conn *c)
{
	if (!load_relaxed(&c->linked))
		return;
	ring_tx_recover(&c->link.tx);
	bell_ring(c->link.tx.bells.bell_fd, &c->link.tx.bells.peer);
	conn_pump(c, 0);
}

void conn_rx_recover(struct conn *c)
{
	if (!load_relaxed(&c->linked))
		return;
	ring_rx_recover(&c->link.rx);
	retreat_recover_rx(c);
	bell_ring(c->link.rx.bells.bell_fd, &c->link.rx.bells.peer);
}

bool conn_is_plain(const struct conn *c)
{
	return !conn_is_linked(c);
}

/* ---- Looking without a lock: a value that is stale a moment later, never one out of bounds. */

size_t conn_rx_avail(struct conn *c)
{
	uint64_t avail;

	if (!conn_rx_on_ring(c))
		return 0;
	avail = ring_rx_unread(&c->link.rx);
	/* A lie counts as something to read: the read finds it out. */
	return avail > ring_rx_bytes(&c->link.rx) ? ring_rx_bytes(&c->link.rx) : (size_t)avail;
}

uint64_t conn_rx_tail(struct conn *c)
{
	return conn_rx_on_ring(c) ? ring_rx_published(&c->link.rx) : 0;
}

size_t conn_tx_room(struct conn *c)
{
	uint64_t room;

	if (!conn_is_linked(c) || conn_far_is_dead(c))
		return 0;
	/* The room first: a lane that moves to its overflow ring meanwhile has it counted twice, not left out. */
	room = ring_tx_room_now(&c->link.tx);
	return room + ring_tx_spare(&c->link.tx);
}

uint64_t conn_tx_taken(const struct conn *c)
{
	return peer_read_u64(&c->link.tx.ctl->rx.head_pos);
}

bool conn_tx_untaken(struct conn *c)
{
	return conn_is_linked(c) && load_unlocked(&c->link.tx.tail_pos) != conn_tx_taken(c);
}

void conn_note_full(struct conn *c)
{
	fetch_add(&c->tx.full_seq, 1);
	ready_changed(c);
}

static bool can_send(struct conn *c)
{
	if (load_relaxed(&c->tx.state) == TX_ORPHAN)
		return true;
	/* A send leaves the ring, if it is time and no end is being told. */
	if (conn_far_is_dead(c))
		return !load_relaxed(&c->tx.fin) && !retreat_far_due(c);
	return conn_tx_room(c) >= ring_tx_low_water(&c->link.tx, SIZE_MAX);
}

static bool writable(struct conn *c)
{
	if (!can_send(c))
		return false;
	conn_note_room(c);
	return true;
}

bool conn_is_unlooked(const struct conn *c)
{
	return conn_is_linked(c) && load_relaxed(&((struct conn *)c)->rx.unlooked);
}

bool conn_attention(const struct conn *c)
{
	return conn_is_linked(c) && (conn_rx_attention(c) || conn_tx_attention(c) || conn_is_unlooked(c));
}

uint32_t conn_take_rx_attention(struct conn *c)
{
	uint32_t flags = ring_rx_attention(&c->link.rx);

	if (likely(!flags))
		return 0;
	/* Noted before it is gone: another thread that finds neither takes the peer for killed. */
	if (flags & WAKE_ATTN_KERNEL)
		store_release(&c->rx.told_end, 1);
	ring_rx_clear_attention(&c->link.rx, flags);
	return flags;
}

/* What the receiver asked for is remembered for the next send; an acknowledgement lies in its own word. */
void conn_take_tx_attention(struct conn *c, int fd)
{
	if (!conn_tx_attention(c) || !conn_trylock_tx(c))
		return;
	conn_take_tx_attention_locked(c, fd);
	lane_unlock(&c->tx.lock);
}

void conn_take_tx_attention_locked(struct conn *c, int fd)
{
	uint32_t flags = ring_tx_attention(&c->link.tx);

	if (likely(!flags))
		return;
	if (flags & WAKE_ATTN_KERNEL)
		conn_receiver_goes(c);
	ring_tx_clear_attention(&c->link.tx, flags);
	if (flags & WAKE_ATTN_WORDS && !retreat_answer(c, fd))
		ring_tx_keep_attention(&c->link.tx, WAKE_ATTN_WORDS);
}

uint64_t conn_rx_edge(struct conn *c)
{
	return conn_rx_tail(c) + load_relaxed(&c->rx.ends);
}

uint64_t conn_tx_edge(struct conn *c)
{
	if (conn_tx_on_ring(c))
		writable(c);
	return load_relaxed(&c->tx.room_seq);
}

/*
 * ---- Frames ----
 */

int conn_frames_locked(struct conn *c, int fd)
{
	enum rx_state before = load_relaxed(&c->rx.state);
	uint32_t ends = load_relaxed(&c->rx.ends);
	bool missed;

	if (!load_relaxed(&c->linked))
		return 0;
	missed = load_relaxed(&c->rx.unlooked) && exchange(&c->rx.unlooked, 0);
	conn_take_rx_attention(c);
	switch_acknowledge(c, fd);
	switch ((enum rx_state)load_relaxed(&c->rx.state)) {
	case RX_ACKED:
		if (switch_read_cap(c) || switch_take(c, fd) != TAKE_RING)
			break;
		/* fall through */
	case RX_RING:
		if (!retreat_left(c))
			conn_look(c, fd);
		if (load_relaxed(&c->rx.state) != RX_LEFT)
			break;
		/* fall through */
	case RX_LEFT:
	case RX_FOLLOW:
		retreat_follow(c, fd);
		if (conn_is_far(c))
			retreat_clear_taken(c, fd);
		break;
	default:
		break;
	}
	conn_far_judge(c);
	/* Who has missed it is told: nothing else may say that there is something to see by now. */
	if (unlikely(missed))
		ready_changed(c);
	return load_relaxed(&c->rx.state) != before || load_relaxed(&c->rx.ends) != ends;
}

int conn_frames_try(struct conn *c, int fd)
{
	int r;

	if (!conn_trylock_rx(c)) {
		/*
		 * Whoever has it may have looked before the frame or the end came that the caller was told of, and the kernel
		 * tells of each but once.
		 */
		fetch_add(&c->rx.looks_missed, 1);
		store_relaxed(&c->rx.unlooked, 1);
		return -EBUSY;
	}
	/* Another thread's close may have come first, and the number be another socket's by now. */
	if (!__libc_single_threaded && !conn_call_has(c, fd)) {
		lane_unlock(&c->rx.lock);
		return -EBUSY;
	}
	r = conn_frames_locked(c, fd);
	lane_unlock(&c->rx.lock);
	return r;
}

size_t conn_rx_tcp_bytes(struct conn *c, int fd)
{
	size_t cap = switch_read_cap(c);
	int kernel = 0;

	if (cap == SIZE_MAX || cap == 0)
		return cap;
	sys_call3(SYS_ioctl, fd, FIONREAD, &kernel);
	return kernel > 0 && (size_t)kernel < cap ? (size_t)kernel : kernel > 0 ? cap : 0;
}

/*
 * ---- Readiness ----
 */

short conn_kernel_events(const struct conn *c, short want)
{
	short events = want;

	if (!conn_is_linked(c))
		return want;
	if (conn_tx_on_ring(c))
		events &= ~WRITE_EVENTS;
	else if (unlikely(retreat_owes(c)))
		events |= POLLOUT;
	if (conn_rx_on_ring(c)) {
		/* Once the end was noticed the socket is readable for ever, and says nothing new; behind a ring that was left it holds what comes later. */
		if (load_relaxed(&((struct conn *)c)->rx.state) != RX_RING || conn_fin_awaited(c))
			events &= ~READ_EVENTS;
		else
			events |= POLLIN;
	}
	return events;
}

/*
 * Our own end is shut for reading a moment before the kernel's is, and a wait that is woken in between must see nothing yet: not a part of what
 * a shutdown of both directions means.
 */
static short ask_shut(int fd, short want, short kernel)
{
	return kernel & POLLRDHUP ? kernel : kernel | sys_ready_now(fd, want | POLLRDHUP);
}

/* The kernel says that the peer is gone, which a far one's link does before. */
static bool gone_for_good(const struct conn *c, short kernel)
{
	return conn_far_is_dead(c) && load_relaxed(&((struct conn *)c)->tx.gone_hint) && kernel & POLLRDHUP;
}

/* A ring that was left stands between the lane and its socket. */
static bool is_returning(struct conn *c)
{
	enum rx_state s = load_relaxed(&c->rx.state);

	return unlikely(s == RX_LEFT || s == RX_FOLLOW || (s == RX_RING && lane_left(c->link.rx.ctl) != LEFT_NOT));
}

bool conn_rx_is_leaving(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;

	if (!conn_is_linked(c) || load_relaxed(&c->rx.state) != RX_RING)
		return false;
	return load_relaxed(&c->rx.leaving) & LEAVING_RETREAT || lane_left(c->link.rx.ctl) != LEFT_NOT;
}

bool conn_has_more_to_tell(struct conn *c)
{
	return conn_attention(c) || conn_rx_ended(c) || load_relaxed(&c->rx.told_end) || load_relaxed(&c->tx.gone_hint) ||
	       conn_far_is_dead(c) || is_returning(c);
}

/*
 * A lane has come back in this very look: the kernel was not asked of it, or its bytes were none of the program's. An end that makes it readable has perhaps come
 * since it was asked, and is told as one.
 */
static short ask_again(int fd, short want, short kernel)
{
	short both = READ_EVENTS | WRITE_EVENTS;

	return (kernel & ~both) | sys_ready_now(fd, want & (both | POLLRDHUP));
}

/* What of the kernel's word holds whichever road the lanes are on. */
static short on_any_road(short want, short kernel)
{
	return kernel & (POLLERR | POLLHUP | POLLNVAL | (want & (POLLPRI | POLLRDHUP)));
}

short conn_ready(struct conn *c, int fd, short want, short kernel)
{
	bool shut = load_relaxed(&c->rx.shut), returning, was_tx_ring = conn_tx_on_ring(c), was_rx_ring = conn_rx_on_ring(c);
	short ready;

	/* Since the kernel was asked: who has no link asks it alone. */
	if (!conn_is_linked(c))
		return ask_again(fd, want, kernel);
	if (unlikely(shut)) {
		kernel = ask_shut(fd, want, kernel);
		shut = kernel & POLLRDHUP;
	}
	ready = on_any_road(want, kernel);
	/* A call would not wait, it would be reset. */
	if (unlikely(conn_pump_look(c) == -ESRCH) && !conn_far_is_dead(c))
		return ready | POLLERR | POLLHUP | (want & (READ_EVENTS | WRITE_EVENTS | POLLRDHUP));
	retreat_serve(c, fd);
	if (unlikely(renew_wanted(c) != REASON_NONE))
		renew_take_back(c, fd);
	returning = is_returning(c);
	if (conn_is_stalled(c))
		conn_probe_if_due(c, fd);
	/* An end of our own that is shut for reading looks the same. */
	if (kernel & POLLRDHUP && !shut && conn_tx_on_ring(c))
		conn_peer_ended(c);
	if (kernel & (POLLIN | POLLRDHUP | POLLHUP | POLLERR) || conn_rx_attention(c) || conn_is_unlooked(c) || conn_far_is_dead(c) || returning)
		conn_frames_try(c, fd);
	if (unlikely((was_tx_ring && !conn_tx_on_ring(c)) || ((returning || was_rx_ring) && !conn_rx_on_ring(c)))) {
		kernel = ask_again(fd, want, kernel);
		/* It may have come back by a shutdown of our own that began after this look. */
		if (load_relaxed(&c->rx.shut)) {
			kernel = ask_shut(fd, want, kernel);
			shut = kernel & POLLRDHUP;
		}
		ready |= on_any_road(want, kernel);
	}
	/* On TCP the end would come behind the bytes. */
	if (unlikely(conn_fin_awaited(c)) && !(kernel & POLLERR)) {
		kernel &= ~(READ_EVENTS | POLLRDHUP | POLLHUP);
		ready &= ~(POLLRDHUP | POLLHUP);
	}
	/* The kernel's send would fail: so shall ours, whatever room there is. */
	if (kernel & POLLHUP && conn_tx_on_ring(c))
		conn_receiver_goes(c);
	/*
	 * The look, or another thread's, may have met an end or a reset that came after the kernel was asked: then all that it means is told at once:
	 * never an end that is not readable, whatever another thread notes between here and the lane's own part below.
	 */
	if (load_relaxed(&c->rx.pending_errno))
		ready |= POLLERR | POLLHUP | (want & (READ_EVENTS | POLLRDHUP));
	if (load_relaxed(&c->rx.state) == RX_ENDED)
		ready |= (want & (READ_EVENTS | POLLRDHUP)) | (load_relaxed(&c->tx.state) == TX_SHUT ? POLLHUP : 0);
	if (conn_rx_on_ring(c)) {
		size_t low = (size_t)load_relaxed(&c->rcv_lowat), most = ring_rx_comes(&c->link.rx) / 2;

		/* To a ring that was left nothing is added. */
		if (load_relaxed(&c->rx.state) == RX_LEFT)
			low = 1;
		if (conn_rx_avail(c) >= (low < most ? low : most) || conn_rx_ended(c) || shut)
			ready |= want & READ_EVENTS;
	} else if (load_relaxed(&c->rx.state) == RX_ACKED) {
		if (conn_rx_tcp_bytes(c, fd) || conn_rx_ended(c) || shut)
			ready |= want & kernel & READ_EVENTS;
	} else if (load_relaxed(&c->rx.state) == RX_FOLLOW) {
		if (conn_rx_ended(c) || shut)
			ready |= want & READ_EVENTS;
	} else {
		ready |= want & kernel & READ_EVENTS;
		/* An end is something to read. The kernel may have been asked when the lane was elsewhere, and not of this. */
		if (c->rx.stash_len || conn_rx_ended(c) || kernel & POLLRDHUP)
			ready |= want & READ_EVENTS;
	}
	if (conn_tx_on_ring(c)) {
		/* A send would not wait: it would fail. */
		if (kernel & (POLLERR | POLLHUP) || load_relaxed(&c->rx.pending_errno) || gone_for_good(c, kernel) || writable(c))
			ready |= want & WRITE_EVENTS;
	} else if (!load_relaxed(&c->tx.fin) || load_relaxed(&c->tx.state) == TX_SHUT) {
		/* Not while this direction's end is being told, back on TCP: it is no room. */
		ready |= want & kernel & WRITE_EVENTS;
	}
	return ready;
}

/* Every linked lane of `want` is armed, on a ring or not, so that disarming never depends on what has happened meanwhile. */
static bool arm_tx(struct conn *c)
{
	if (!conn_tx_on_ring(c) || conn_far_is_dead(c))
		return ring_tx_sleep_begin_words(&c->link.tx);
	conn_far_make_way(c);
	/* Nobody sleeps for room in a full ring while the overflow ring is there: the next send takes to that. */
	return ring_tx_spare(&c->link.tx) || ring_tx_sleep_begin(&c->link.tx, SIZE_MAX);
}

void conn_give_back(struct conn *c)
{
	if (likely(!ring_rx_may_trim(&c->link.rx)) || !conn_trylock_rx(c))
		return;
	ring_rx_trim(&c->link.rx, now_ns());
	lane_unlock(&c->rx.lock);
}

void conn_set_lowat(struct conn *c, int fd, int32_t bytes)
{
	store_relaxed(&c->rcv_lowat, bytes);
	if (!conn_is_linked(c) || !conn_hold(c, fd))
		return;
	/* Enough by now, perhaps. The edge is for who has looked, and does not sleep yet. */
	if (conn_rx_avail(c)) {
		fetch_add(&c->rx.ends, 1);
		ring_rx_stir(&c->link.rx);
		ready_changed(c);
	}
	conn_drop(c);
}

bool conn_arm(struct conn *c, short want)
{
	bool rx = want & READ_EVENTS, tx = want & WRITE_EVENTS;

	if (!conn_is_linked(c))
		return false;
	conn_refresh_stats(c);
	if (unlikely(renew_wanted(c) != REASON_NONE))
		return true;
	conn_give_back(c);
	conn_pump(c, VERBS_ARM);
	if (rx && (conn_rx_on_ring(c) ? ring_rx_sleep_begin(&c->link.rx)
				      : ring_rx_sleep_begin_past(&c->link.rx, ring_rx_published(&c->link.rx))))
		return true;
	if (tx && arm_tx(c)) {
		if (rx)
			ring_rx_sleep_end(&c->link.rx, false);
		return true;
	}
	idle_note(c);
	return false;
}

bool conn_arm_edge(struct conn *c, short want, uint64_t rx_edge, uint64_t tx_edge)
{
	bool rx = want & READ_EVENTS, tx = want & WRITE_EVENTS;

	if (!conn_is_linked(c))
		return false;
	conn_refresh_stats(c);
	if (unlikely(renew_wanted(c) != REASON_NONE))
		return true;
	conn_give_back(c);
	conn_pump(c, VERBS_ARM);
	if (rx && ring_rx_sleep_begin_past(&c->link.rx, ring_rx_published(&c->link.rx)))
		return true;
	/* Room that a full ring has got since makes sleep_begin() refuse; room that was there all along is no edge. */
	if (tx && (load_relaxed(&c->tx.full_seq) != load_relaxed(&c->tx.room_seq) ? arm_tx(c)
										   : ring_tx_sleep_begin_words(&c->link.tx))) {
		if (rx)
			ring_rx_sleep_end(&c->link.rx, false);
		return true;
	}
	if ((rx && conn_rx_edge(c) != rx_edge) || (tx && conn_tx_edge(c) != tx_edge)) {
		conn_disarm(c, want);
		return true;
	}
	idle_note(c);
	return false;
}

void conn_disarm_one(struct conn *c, short event, bool rung)
{
	if (event & READ_EVENTS)
		ring_rx_sleep_end(&c->link.rx, rung);
	else
		ring_tx_sleep_end(&c->link.tx, rung);
}

void conn_disarm(struct conn *c, short want)
{
	if (!conn_is_linked(c))
		return;
	if (want & READ_EVENTS)
		conn_disarm_one(c, POLLIN, true);
	if (want & WRITE_EVENTS)
		conn_disarm_one(c, POLLOUT, true);
}

int conn_bell_fd(const struct conn *c, short event)
{
	if (!conn_is_linked(c))
		return -1;
	return event & READ_EVENTS ? c->link.rx.bells.bell_fd : event & WRITE_EVENTS ? c->link.tx.bells.bell_fd : -1;
}
