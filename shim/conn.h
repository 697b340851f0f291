/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_H
#define RINGWAY_CONN_H

/*
 * The connection record: one end of a TCP connection, its two lanes, and every call that may be made on it.
 *
 * Records live in shared memory made before main(), so parent and child of a fork see one truth, and a pointer
 * to a record that was used before the fork is valid in both. What a record points to (segment, bells) was made while one process held it and is inherited
 * at the same addresses and numbers.
 *
 * Lock order. There are two locks in a record, one a lane, and one rule: tx before rx, and nothing else is ever taken while
 * one is held: no lock of another connection, of the fd table, or of libc. A call never sleeps, and never calls into the
 * program's code, with a lane locked. Data calls take one lane; close, shutdown, pin and the rendezvous take both.
 * Between hosts two things differ: the engine's libraries have locks of their own, and allocate; and a void that could be taken for a frame, which
 * must have arrived before the next byte of TCP, is waited for with the lane locked, for RINGWAY_PATIENCE at most. So is an end,
 * if it was not waited for before (conn_fin_await()).
 *
 * Errors. Functions below return a count, 0, or -errno and leave errno alone, except where a comment says "as the libc call":
 * those are what the wrappers return to the program.
 */

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "ringbuf/stats.h"
#include "ringbuf/transport.h"
#include "shim/conn_state.h"
#include "shim/frame.h"
#include "shim/lane_lock.h"
#include "shim/nego_state.h"

struct msghdr;

enum conn_role {
	CONN_UNKNOWN,	/* inherited or received: stays on TCP */
	CONN_CONNECTED,	/* the program called connect(): offers */
	CONN_ACCEPTED,	/* came from accept(): dials */
};

#define CONN_MAX (UINT32_C(1) << 17)	/* records; every index is below it */
#define CONN_STEP_SHIFT 10		/* so many at a time find their place in memory: a power of two */
#define CONN_MAX_HOLDERS 12		/* processes known by number, see conn_holders.c */
#define CONN_HOLD_AFTER 3		/* voided announcements in a row before a send waits a moment for the acknowledgement */

/* The direction that this end sends. Written under the tx lock unless a comment says otherwise. */
struct lane_tx {
	struct lane_lock lock;
	_Atomic uint8_t mode;	/* enum lane_mode: what the data calls look at; follows from state */
	_Atomic uint8_t state;	/* enum tx_state; conn_state.c alone writes it */
	uint8_t rest_done;	/* of the SWITCH frame: bytes that the kernel has taken; the lane's state says whether it is owed */
	uint8_t probe_done;	/* of a PROBE frame: bytes that the kernel has taken, 0 when none was begun */
	_Atomic int32_t in_calls;	/* plain calls inside the kernel now */
	_Atomic uint64_t tcp_bytes;	/* program bytes that the kernel took */
	_Atomic uint64_t calls;
	_Atomic uint64_t full_seq;	/* sends that found no room in the ring: each makes the next room an edge */
	_Atomic uint64_t room_seq;	/* the last full_seq after which room was seen */
	uint64_t announced_pos;	/* S */
	uint32_t announced_seq;
	_Atomic uint8_t fin;	/* enum tx_fin, between hosts: what becomes of the stream's end */
	uint16_t voids;		/* announcements voided in a row */
	uint16_t hold_at;	/* the next send is held when voids reaches this */
	uint16_t hold_step;
	_Atomic uint8_t alert;	/* sends go the slow way: the link is far, or one of the four below, pending_errno or dead may be set */
	_Atomic uint8_t gone_hint;	/* the receiver has said that it goes: the kernel's word is awaited at each send */
	_Atomic uint8_t shut;		/* the program has shut this direction down, on whichever road */
	_Atomic uint8_t peer_ended;	/* the peer's end of the other lane was seen: half closed, or gone */
	_Atomic uint8_t probe_due;	/* a probe goes in front of the next bytes */
	_Atomic uint8_t probes;	/* sent while room was waited for: the next is twice as far off */
	uint16_t sends_since_look;	/* after the peer's end: sends since the kernel's socket was asked about its health */
	_Atomic int64_t probe_at;	/* when the next is due, see conn_probe.h; 0: nobody waits */
	_Atomic int64_t ask_at;		/* ... when a far peer's device is asked for a sign of life */
	uint64_t ask_tick;		/* ... and when that was looked at, by the processor's counter */
	_Atomic int64_t stalled_at;	/* since when the peer has taken nothing of a full ring; 0: not known, or not so */
	_Atomic uint64_t stalled_pos;	/* up to where it had taken by then */
	uint64_t left_pos;	/* once the lane has left the ring: the first byte of it for TCP */
	uint64_t resent_pos;	/* ... the next one */
	uint64_t given_done;	/* of what the receiver has given back */
	uint64_t have_pos;	/* between hosts: what the frames say with which it leaves */
	uint8_t leaving_done;	/* bytes of them that the kernel has taken */
	uint32_t frames;	/* whole ones in the stream */
	/* What is being written into the socket by who has the move lock, for a relative that finds it dead. */
	uint8_t piece;		/* enum piece */
	uint32_t piece_frames;	/* frames before it */
	uint64_t piece_at;	/* how much of the thing was written before it */
	uint64_t piece_count;	/* the kernel's count before it */
};

/* The direction that this end receives. */
struct lane_rx {
	struct lane_lock lock;
	_Atomic uint8_t mode;
	_Atomic uint8_t state;	/* enum rx_state; conn_state.c alone writes it */
	_Atomic uint8_t shut;	/* shutdown(SHUT_RD) was called */
	uint8_t proven;		/* the frame came: what lies in the ring is the TCP peer's */
	_Atomic uint8_t told_end;	/* the peer has said, in the segment, that it ends its stream or goes */
	_Atomic uint8_t unlooked;	/* a look did not get the lock: what called for it is still to be seen */
	_Atomic uint32_t looks_missed;	/* ... so many */
	_Atomic uint8_t dead;	/* the stream cannot be trusted any more: the kernel's socket is not read again */
	_Atomic int32_t in_calls;
	_Atomic int32_t in_waits;	/* threads and relatives that sleep on the kernel's socket alone, since there was no link; see conn_wait_enters() */
	_Atomic uint64_t tcp_bytes;	/* program bytes taken from the kernel */
	_Atomic uint64_t calls;
	uint64_t cap_pos;	/* S of the acknowledged announcement: no read from TCP goes past it */
	uint32_t acked_seq;
	_Atomic uint32_t looks_skipped;	/* empty reads since the kernel's socket was last asked */
	_Atomic uint32_t ends;	/* ends of stream and errors noticed: part of the edge count */
	uint8_t fin_known;	/* between hosts: the peer has said where its stream ends */
	_Atomic uint8_t error_told;	/* ... the kernel's error was taken from it: told to the program, or to be told (pending_errno) */
	uint64_t fin_pos;
	_Atomic int32_t pending_errno;	/* an error that a look took from the kernel: told to the program once */
	/* The beginning of what may be a frame, taken out of the kernel so that its socket is not readable for nothing. */
	uint8_t stash_len;
	uint8_t stash[FRAME_SIZE];
	uint32_t frames;	/* taken */
	uint8_t end_told;	/* this end has gone, and behind the switch that comes an end may: retreat_far_switched() */
	uint64_t left_pos;	/* once the ring is drained behind a sender that left it: what TCP went on with */
	uint64_t discarded;	/* of what came twice */
	/* Between hosts, from the frames of a sender that leaves: */
	_Atomic uint8_t leaving;	/* LEAVING_* */
	_Atomic uint64_t peer_has;	/* of the other lane */
	uint64_t upto_pos;
	uint64_t resent_left;	/* bytes of the ring that have not come yet, and will by TCP before any others: an end in front of them is none */
};

union conn_addr {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct conn {
	struct lane_tx tx __attribute__((aligned(64)));
	struct lane_rx rx __attribute__((aligned(64)));
	struct ring_link link __attribute__((aligned(64)));	/* link.ops is NULL until the rendezvous has made one */

	/* Read by every call, seldom written. */
	uint8_t role __attribute__((aligned(64)));	/* enum conn_role */
	_Atomic uint8_t live;		/* 0 in a free record */
	_Atomic uint8_t linked;		/* the segment is mapped and both ends know each other */
	_Atomic uint8_t nonblock;	/* O_NONBLOCK of the file description */
	_Atomic uint8_t tells_inq;	/* TCP_INQ */
	_Atomic uint8_t zero_copies;	/* SO_ZEROCOPY */
	_Atomic uint8_t stamps;		/* SO_TIMESTAMP or its kin: which (control.h) */
	_Atomic uint8_t waits_seen;	/* the program waits for it through us: it stood in a poll, a select or an epoll set */
	_Atomic int32_t link_dead;	/* -errno of a far link that has died, see conn_far.h */
	_Atomic int64_t link_died_at;
	_Atomic uint8_t link_judged;	/* this end has left its ring for it, or was about to */
	uint64_t heard_at;		/* clock_counter() of the last send to a far peer; tx lock */
	int64_t dead_send_at;		/* the first send after its death; tx lock */
	_Atomic uint8_t shared;		/* more than one process has held it: locks and counts are atomic from now on */
	_Atomic uint8_t reason;		/* enum reason: why it is on TCP; REASON_NONE while nothing speaks against a ring */
	_Atomic uint8_t pinned;		/* reason is final, but for `passing` */
	_Atomic uint8_t passing;	/* pinned until the link is given up: another may follow */
	_Atomic uint8_t asked_back;	/* this end wants both lanes back */
	_Atomic uint8_t returned;	/* both lanes are back on TCP, and whoever has the descriptor may use it */
	_Atomic uint8_t have_addr;
	_Atomic uint8_t have_options;	/* conn_read_options() was here */
	_Atomic int32_t rcv_lowat;
	_Atomic int64_t rcv_timeout_ns;	/* SO_RCVTIMEO, 0: for ever */
	_Atomic int64_t snd_timeout_ns;
	_Atomic int64_t user_timeout_ns;	/* TCP_USER_TIMEOUT, 0: none */

	uint32_t index;
	uint32_t generation;	/* grows each time the record is used anew */
	uint32_t born;		/* ... as it was when this connection began: it grows when a link is given up, too */
	_Atomic uint32_t next_free;
	_Atomic int32_t nr_holders;	/* processes that have a descriptor of it */
	_Atomic int32_t nr_maps;	/* processes that may still look at the record */
	_Atomic uint32_t holders[CONN_MAX_HOLDERS];	/* their numbers (family.h); 0: free slot */
	struct conn_asleep {
		_Atomic uint16_t rx, tx;	/* of nr_threads in the bells: this holder's */
	} asleep[CONN_MAX_HOLDERS];
	_Atomic uint8_t lost_holder;	/* one was killed: what it had begun is not finished */

	uint64_t nonce[2];		/* ours */
	uint64_t peer_nonce[2];
	union conn_addr local, peer;	/* conn_learn_addresses() */
	uint64_t cookie;		/* SO_COOKIE, with the addresses */
	struct nego_part nego;
	uint32_t opener;		/* the process (family.h) that connected or accepted */
	_Atomic uint64_t told_far[3];	/* of what the engine counts */
	uint64_t far_before[3];		/* ... of links that were given up */
	_Atomic uint64_t told[4];	/* tcp_tx, tcp_rx, ring_tx, ring_rx bytes already in some process's summary */
	struct linger linger;		/* the program's SO_LINGER, while linger_ours */
	uint8_t linger_ours;		/* conn_end_lanes() has set another, so that the kernel resets */
	uint8_t exec_soon;		/* nothing is announced until the exec has failed; both locks */
	_Atomic uint32_t switches;	/* SWITCH frames so far, of both lanes: the epoch */
	uint32_t switches_before;	/* ... when the link was given up last */
	_Atomic uint32_t retreats;	/* how often both lanes came back */
	_Atomic uint64_t own_bytes[2];	/* tx, rx: of tcp_bytes not the program's, but frames, and what was sent twice */
	_Atomic uint64_t ring_before[2];	/* tx, rx: bytes of rings that were given up */
	_Atomic int64_t idle_since;	/* idle.h: the look at which it had moved, or was first seen; 0: it was not yet */
	_Atomic uint64_t idle_pos;	/* ... and how much it had moved by the last one */
	_Atomic uint8_t idle_aside;	/* it asks for no look before it has moved again */
	_Atomic uint8_t idle_served;	/* looks at which it was on its way back */
	_Atomic int64_t linked_at;	/* when the link was made */
	struct {
		uint64_t calls, bytes;	/* when the spell began */
		uint64_t level;		/* by then */
		int64_t since;		/* the look at which it had moved last; 0: none was made */
		uint32_t spell;
	} busy;				/* ceiling.h; of who makes the look */
	uint8_t parted;			/* `link` is what is left of one that was given up */
	uint8_t reason_told;
	_Atomic uint8_t stats_told;	/* conn_stats_mark(), when the statistics were last stored */
};

/* ---- set-up and records (conn.c) --------------------------------------------------------------------------------- */

/* Maps the arena. Before main, once. A failure leaves every connection on TCP. */
int conn_arena_init(void);

/*
 * A TCP connection appeared under `fd` in this process: connect() returned 0 or EINPROGRESS, or accept() a descriptor. Makes
 * no system call, but for the first one in a forked child. Returns NULL when no record is to be had: the fd then is the kernel's
 * alone. The caller installs it in the fd table. `nonblock` is what the caller knows of O_NONBLOCK.
 */
struct conn *conn_opened(enum conn_role role, bool nonblock);

/* connect() failed for good: gives a record back that never carried a byte. */
void conn_discard(struct conn *c);

/*
 * The last descriptor of this process for it is about to be closed (`fd`, still open). Call before the real close, after the
 * fd table has forgotten it. If no other process holds the record this ends the lanes as kernel TCP would: a reset if program bytes are
 * unread in the ring, else frames are drained so that the kernel says FIN. Frees the record. Never blocks, but for the end of a ring
 * between hosts (conn_fin.h), and that bounded.
 */
void conn_release(struct conn *c, int fd);

/* fcntl(F_SETFL), ioctl(FIONBIO) and the like succeeded on a descriptor of it. */
void conn_set_nonblock(struct conn *c, bool on);
/* The low-water mark of receives, as the kernel's socket has it by now; whoever waits for less than the one before is woken. */
void conn_set_lowat(struct conn *c, int fd, int32_t bytes);

/*
 * Stays on TCP from now on for `why`, if it still can: a lane that is on a ring goes on there. Returns true if both
 * lanes are on TCP for good, false if one is on a ring.
 */
bool conn_pin(struct conn *c, enum reason why);
/* The same for a caller that holds both lane locks; the rendezvous is the caller's to abandon. */
bool conn_pin_locked(struct conn *c, enum reason why);

/*
 * What may have been set before there was a record: time-outs, low-water mark, O_NONBLOCK, and what a ring cannot carry. Once,
 * before the first call that depends on it; setsockopt() and fcntl() keep the copies up to date afterwards.
 */
void conn_read_options(struct conn *c, int fd);

/* Fills local, peer and cookie once. 0 or -errno. */
int conn_learn_addresses(struct conn *c, int fd);

/* NULL: this process has no address for it. */
struct conn *conn_at(uint32_t index);

/* A link of it was given up, and another may follow. */
static inline bool conn_had_link(const struct conn *c)
{
	return c->generation != c->born;
}

/* ---- processes ---------------------------------------------------------------------------------- */

/*
 * fork: `held` lists the distinct connections of the process's fd table. prepare marks each shared and enters `child` (family.h) as a
 * holder, before the fork; cancel takes that back if it failed. No lock is held across a fork.
 */
void conn_fork_prepare(struct conn *const *held, unsigned nr, uint32_t child);
void conn_fork_child(void);
void conn_fork_cancel(struct conn *const *held, unsigned nr, uint32_t child);

/*
 * The process is about to end (exit, _exit): what close would do to the peer's view, without closing. The connections can still be used by
 * destructors that run later. Of many, those that wait for far peers wait together.
 */
void conn_exit_all(struct conn *const *conns, const int *fds, unsigned nr);
/* Of one that the fd table may have forgotten. */
void conn_exit_flush(struct conn *c, int fd);

/*
 * The process may be about to become another program, to which these do not pass; other threads go on with them until it has. conn_exec_failed(), for
 * each, if it has not.
 */
void conn_exec_all(struct conn *const *conns, const int *fds, unsigned nr);
void conn_exec_failed(struct conn *c, int fd);

/* ---- what the rendezvous calls (conn_link.c) --------------------------------------------------------------------- */

/*
 * Both lane locks, for the rendezvous and whoever needs the counts to stand still: 0, or -EBUSY if a lane is locked or a
 * plain call is inside the kernel.
 */
int conn_trylock_both(struct conn *c);
void conn_unlock_both(struct conn *c);
/* Waits for both. -EDEADLK: this thread holds one of them, which means that a signal handler is asking. */
int conn_lock_both(struct conn *c);

/*
 * The rendezvous succeeded: c->link is complete (both bells adopted among the hidden fds, the peer's bells met), and both lanes may
 * be announced from now on. Caller holds both locks. Cannot fail. Until then c->link is the rendezvous's to make and to close.
 */
void conn_linked(struct conn *c, const uint64_t nonce[2], const uint64_t peer_nonce[2]);

/* The opposite, both locks held: what was sought was not found, and may be sought again. */
void conn_unseek(struct conn *c);

/* From now on blocking calls sleep in poll, with nego_wait_fd() among the descriptors, rather than inside recv(). */
void conn_seek(struct conn *c);

/* ---- data (conn_recv.c, conn_send.c): as the libc call, but -errno in the value ------------------------------------ */

/* `m` is NULL, or takes msg_flags, msg_namelen and msg_controllen as recvmsg() would set them. */
ssize_t conn_recv_iov(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags, struct msghdr *m);
ssize_t conn_send_iov(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags, const struct msghdr *m);
ssize_t conn_recv(struct conn *c, int fd, void *buf, size_t len, int flags);
ssize_t conn_send(struct conn *c, int fd, const void *buf, size_t len, int flags);
ssize_t conn_sendfile(struct conn *c, int fd, int in_fd, off_t *off, size_t count);
/* One of the two is a pipe, the other the connection. */
ssize_t conn_splice_in(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags);
ssize_t conn_splice_out(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags);
int conn_shutdown(struct conn *c, int fd, int how);
/* Bytes that FIONREAD/SIOCINQ and SIOCOUTQ report. */
int conn_inq(struct conn *c, int fd);
/* What TCP_INQ tells beside a message: the same, and one more where the stream's end has come. */
int conn_inq_hint(struct conn *c, int fd);
int conn_outq(struct conn *c, int fd);

/* Calls between two stores of the counters into the statistics segment. */
#define CONN_TELL_EVERY 64
/* Stores them now, and gives the connection a row if it has none. No lane locked. */
void conn_tell_stats(struct conn *c, int fd);
/* Only if it has one: before a sleep, so that what is seen of a process at rest is true. */
void conn_refresh_stats(const struct conn *c);
static inline uint8_t conn_stats_mark(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return (uint8_t)((load_relaxed(&m->switches) + load_relaxed(&m->retreats)) * 2 + load_relaxed(&m->pinned));
}
/* After a call: every CONN_TELL_EVERY calls, and when a lane has changed roads or the reason is settled. */
static inline bool conn_stats_due(const struct conn *c, uint64_t calls)
{
	struct conn *m = (struct conn *)c;

	return calls % CONN_TELL_EVERY == 0 || load_relaxed(&m->stats_told) != conn_stats_mark(c);
}

/* ---- uses (conn_use.c) --------------------------------------------------------------------------------------------- */

/*
 * Who looks at a connection's link without a lane lock holds a use of it meanwhile, so that a close by another thread leaves the
 * mapping and the bells until the last use is dropped. False: `fd` is not this connection any more.
 */
bool conn_hold(struct conn *c, int fd);
void conn_drop(struct conn *c);

/* ---- readiness ----------------------------------------------------------------------------------------------------- */

/* Hints unless the lane's lock is held; safe to call under conn_hold(). */
static inline void conn_wait_seen(struct conn *c)
{
	if (unlikely(!load_relaxed(&c->waits_seen)))
		store_relaxed(&c->waits_seen, 1);
}

static inline bool conn_is_linked(const struct conn *c)
{
	return load_acquire(&((struct conn *)c)->linked) != 0;
}

/*
 * While one sleeps on the kernel's socket of a connection that has no link, another thread or relative may make one, acknowledge, and take the frame out of
 * the socket again before the sleeper has looked; of the bytes that the ring brings then no bell would tell it. So the sleepers are counted, and
 * with one nothing is acknowledged: the next bytes come by TCP. Alone nobody else can do so, and pinned nobody will.
 */
static inline bool conn_wait_counts(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return !lane_is_alone(load_relaxed(&m->shared)) && !load_relaxed(&m->pinned);
}

static inline void conn_wait_leaves(struct conn *c)
{
	fetch_sub(&c->rx.in_waits, 1);
}

/* False, and not counted: there is a link by now. Pairs with switch_acknowledge(). */
static inline bool conn_wait_enters(struct conn *c)
{
	fetch_add(&c->rx.in_waits, 1);
	fence_full();
	if (likely(!conn_is_linked(c)))
		return true;
	conn_wait_leaves(c);
	return false;
}

/* Bytes of the program, of both lanes, by either road, over all links. Hints unless the locks are held. */
struct conn_bytes {
	uint64_t tcp_tx, tcp_rx, ring_tx, ring_rx;
};
struct conn_bytes conn_bytes_so_far(const struct conn *c);

static inline bool conn_rx_on_ring(const struct conn *c)
{
	enum rx_state s = load_relaxed(&((struct conn *)c)->rx.state);

	return s == RX_RING || s == RX_LEFT || (s == RX_ENDED && c->rx.proven);
}

/* While true POLLOUT is room in the ring (or, in a lane whose reader is gone, always); else it is the kernel's. */
static inline bool conn_tx_on_ring(const struct conn *c)
{
	enum tx_state s = load_relaxed(&((struct conn *)c)->tx.state);

	return s == TX_RING || s == TX_ORPHAN;
}

/* Bytes that the program could read from the ring; 0 while the lane is on TCP, whatever lies in the ring. */
size_t conn_rx_avail(struct conn *c);
/* Position up to which bytes have arrived in the ring; 0 while the lane is on TCP. Grows with each arrival. */
uint64_t conn_rx_tail(struct conn *c);
/* Bytes that a send could put into the lane's rings now. */
size_t conn_tx_room(struct conn *c);
/* Does the peer have bytes of ours, on a ring, that it has not taken? */
bool conn_tx_untaken(struct conn *c);
/* Up to which position it has. Linked. */
uint64_t conn_tx_taken(const struct conn *c);

/*
 * Takes the frames that lie in the kernel's buffer, acknowledges an announcement, notices an end. -EBUSY: another thread has the lane; 1:
 * what poll() would say may have changed; 0: nothing new.
 */
int conn_frames_try(struct conn *c, int fd);
/* The same for a caller that holds the rx lock. */
int conn_frames_locked(struct conn *c, int fd);

/*
 * A call of the program had `err` from the kernel's socket, which forgets it by that: where it is a reset or the like, neither the end that the
 * socket shows from now on nor an error of ours that is still to be told is another one.
 */
void conn_kernel_told(struct conn *c, int err);
/* The kernel has told its error by SO_ERROR, and has forgotten it. */
void conn_error_taken(struct conn *c);

/* The end of the stream or an error was noticed: reads do not block any more, once the ring is drained. */
static inline bool conn_rx_ended(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return load_relaxed(&m->rx.state) == RX_ENDED || load_relaxed(&m->rx.pending_errno) != 0;
}

/*
 * The error that a receive is to tell, once; 0: none. EPIPE is none of those: the kernel has it for a reset behind the peer's end, and receives tell the end
 * then.
 */
static inline int conn_take_rx_error(struct conn *c)
{
	int32_t err = load_relaxed(&c->rx.pending_errno);

	return likely(!err) || err == EPIPE || !compare_exchange(&c->rx.pending_errno, &err, 0) ? 0 : err;
}

/* Program bytes that may be read from TCP: SIZE_MAX where the kernel's answer is the answer, else those before S. */
size_t conn_rx_tcp_bytes(struct conn *c, int fd);

/*
 * How poll, select and epoll see a connection.
 *
 *   conn_is_plain()       nothing is linked: the kernel knows everything, nothing below applies
 *   conn_kernel_events()  what to ask the kernel about the program's fd, given what the program wants: while tx is on a ring
 *                         POLLOUT is not the kernel's to say; while rx is on a ring POLLIN there means a frame or an end
 *   conn_ready()          the answer to the program. `kernel` is what the kernel said (0 if it was not asked). May look at the
 *                         kernel's socket to take frames and ends; never blocks. Every bit of `want` that holds, and
 *                         POLLHUP, POLLERR as poll() gives them.
 *   conn_arm()            says to the peer that somebody sleeps, for POLLIN and POLLOUT of `want`, as far as those lanes
 *                         are linked; true if there is something already and the caller must not sleep (then nothing is armed).
 *                         After the sleep, once, conn_disarm() with the same `want`, from any thread.
 *   conn_arm_edge()       arms even if something is unread; true only if conn_rx_edge() or conn_tx_edge() has moved past the
 *                         values given, or the peer asks for attention
 *   conn_bell_fd()        the fd to sleep on for POLLIN or POLLOUT, -1 if the lane has no bell
 */
bool conn_is_plain(const struct conn *c);
short conn_kernel_events(const struct conn *c, short want);
short conn_ready(struct conn *c, int fd, short want, short kernel);
bool conn_arm(struct conn *c, short want);
bool conn_arm_edge(struct conn *c, short want, uint64_t rx_edge, uint64_t tx_edge);
void conn_disarm(struct conn *c, short want);
/* The same for one event, where it is known whether the bell was readable: saves a system call at the next sleep. */
void conn_disarm_one(struct conn *c, short event, bool rung);
int conn_bell_fd(const struct conn *c, short event);

/* Memory that an overflow of the rx lane has cost, once everything was taken. Linked, under conn_hold(). */
void conn_give_back(struct conn *c);

/*
 * Around a thread's own sleep on the bells of `want`, once armed: others then leave it the ring that woke it. After the first, look at
 * the edges once more: a ring that was drained before it is one that has moved them. Of a holder that is killed in its sleep the
 * count is taken back with it (conn_holders.c).
 */
void conn_thread_sleeps(struct conn *c, short want);
void conn_thread_wakes(struct conn *c, short want);

/*
 * The peer asks this end to look, at the switch's words or at the kernel's socket, or a look was put off because the lane was
 * locked. A few loads; conn_frames_try() answers.
 */
bool conn_attention(const struct conn *c);
/* The last of it. Who has the lock may have looked before there was anything, and says nothing when it is done. */
bool conn_is_unlooked(const struct conn *c);
/*
 * Is there, or may there come at any moment, more to tell than bytes and room: an end, a reset, urgent data, a lane that goes? Then the kernel's
 * socket is looked at, whatever the rings have. A few loads. A peer that is killed says nothing before.
 */
bool conn_has_more_to_tell(struct conn *c);
/* Of one lane, linked. */
static inline bool conn_rx_attention(const struct conn *c)
{
	return peer_read_u32(&c->link.rx.ctl->tx_state.wake) & WAKE_ATTN_MASK;
}

static inline bool conn_tx_attention(const struct conn *c)
{
	return peer_read_u32(&c->link.tx.ctl->rx_state.wake) & WAKE_ATTN_MASK;
}

/* Looks that did not get the lock so far: where that has grown, what a look in between has found may be old. */
static inline uint32_t conn_looks_missed(const struct conn *c)
{
	return load_relaxed(&((struct conn *)c)->rx.looks_missed);
}

/* The sender has left its ring, and the lane is there still, as when the link is not down yet: whose bytes the socket has is not known. */
bool conn_rx_is_leaving(const struct conn *c);

/* Takes the rx lane's flags, rx lock held, and remembers an end that was told. */
uint32_t conn_take_rx_attention(struct conn *c);
/* Clears the tx lane's, if the lane is free, and remembers what the next send has to know. */
void conn_take_tx_attention(struct conn *c, int fd);
void conn_take_tx_attention_locked(struct conn *c, int fd);

/*
 * Edges. rx: moves with every arrival in the ring and every end noticed, constant while the lane is on TCP, where the kernel's
 * edges count. tx: moves when room appears (a quarter of the ring), or the lane is back on TCP, after a send that found none.
 */
uint64_t conn_rx_edge(struct conn *c);
uint64_t conn_tx_edge(struct conn *c);

/* A send was told that there is no room; a look, or a lane that has come back to TCP, shows that there is. */
void conn_note_full(struct conn *c);
/* Tx lock held, the lane on its ring: false where it would begin to fill its overflow ring, and the control group has no memory for it. */
bool conn_may_overflow(const struct conn *c);
static inline void conn_note_room(struct conn *c)
{
	store_relaxed(&c->tx.room_seq, load_relaxed(&c->tx.full_seq));
}

static inline uint64_t conn_tx_full_seq(const struct conn *c)
{
	return load_relaxed(&((struct conn *)c)->tx.full_seq);
}

#endif
