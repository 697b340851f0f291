/* SPDX-License-Identifier: MIT */
/*
 * Uses of a connection by the threads of this process, and the end of its mapping here. A data call needs none: it holds a
 * lane lock, and close takes both before it ends anything. Waits hold no lock and count themselves here instead.
 */
#include "shim/conn_use.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/links.h"
#include "shim/own_fd.h"
#include "shim/signals.h"
#include "shim/stepped.h"
#include "shim/wait.h"

/*
 * A call that sleeps keeps its use to its end, but has none of a link that was given up meanwhile: it *passes*. Uses, those of them that have passed, and the era in which they
 * did (which ends with the next link) are one word, so that a count is of one moment.
 */
#define USE UINT64_C(1)
#define PASSED (UINT64_C(1) << 24)
#define ERA (UINT64_C(1) << 48)

struct use {
	_Atomic uint64_t nr;
	_Atomic uint32_t closing;
	_Atomic uint32_t flushed;	/* the end of the process has been announced */
	_Atomic uint32_t sleepers;	/* data calls that have slept and are not over */
	_Atomic uint32_t kept;		/* 1 + the hidden descriptor that they have instead of the closed one */
	_Atomic uint32_t buried;	/* closed, and nothing more will come of it */
	_Atomic uint32_t leaving;	/* the link was given up, and is still there: a state, above it how many were */
	struct segment segment;		/* of that one, with its bells */
	int bells[2];
	void *engine;			/* of a far one */
};

enum { LEAVING_NOT, LEAVING_SOON, LEAVING, LEAVING_NOW, LEAVING_STATE = 3, LEAVING_NEXT = 4 };

/* For whoever closes and has lost his processor, with a record that may be needed for ever. */
#define DECIDE_PAUSE_NS 50000
#define DECIDE_PAUSES 20000

static _Atomic uint32_t nr_leaving;

static _Atomic uint32_t nr_kept;

static struct stepped uses = { sizeof(struct use), CONN_STEP_SHIFT };
_Static_assert(CONN_MAX >> CONN_STEP_SHIFT <= STEPPED_MAX, "every record has its row");

static struct use *use_at(uint32_t index)
{
	return STEPPED_ROW(&uses, struct use, CONN_STEP_SHIFT, index);
}

static struct use *use_of(const struct conn *c)
{
	return use_at(c->index);
}

int conn_use_reach(uint32_t index)
{
	return stepped_reach(&uses, index);
}

void conn_use_opened(struct conn *c)
{
	/* Not `nr`: a thread that still has the record's former name may be between conn_hold() and its conn_drop(). */
	store_relaxed(&use_of(c)->closing, 0);
	store_relaxed(&use_of(c)->flushed, 0);
	store_relaxed(&use_of(c)->buried, 0);
}

/* The next that may have a row, from `index` on; CONN_MAX: none. */
static uint32_t next_used(uint32_t index)
{
	while (index < CONN_MAX && !stepped_has(&uses, index))
		index += UINT32_C(1) << CONN_STEP_SHIFT;
	return index;
}

/* The connections that only sleeping calls hold: none but in a program that closes under them. */
static void for_each_kept(void (*act)(uint32_t index, int fd))
{
	if (!load_relaxed(&nr_kept))
		return;
	for (uint32_t i = next_used(0); i < CONN_MAX; i = next_used(i + 1)) {
		uint32_t kept = load_relaxed(&use_at(i)->kept);

		if (kept)
			act(i, (int)kept - 1);
	}
}

static void flush_kept(uint32_t index, int fd)
{
	conn_exit_flush(conn_at(index), fd);
}

void conn_use_flush_kept(void)
{
	for_each_kept(flush_kept);
}

/* The calls are the parent's, and so is what they keep. */
static void close_kept(uint32_t index, int fd)
{
	(void)index;
	own_fd_close(fd);
}

static void close_link(struct use *u)
{
	own_fd_close(u->bells[0]);
	own_fd_close(u->bells[1]);
	far_leave_engine(u->engine);
	segment_close(&u->segment);
	links_give();
}

void conn_use_fork_child(void)
{
	for_each_kept(close_kept);
	for (uint32_t i = next_used(0); load_relaxed(&nr_leaving) && i < CONN_MAX; i = next_used(i + 1))
		if ((load_relaxed(&use_at(i)->leaving) & LEAVING_STATE) == LEAVING)
			close_link(use_at(i));
	store_relaxed(&nr_leaving, 0);
	store_relaxed(&nr_kept, 0);
	for (uint32_t i = next_used(0); i < CONN_MAX; i = next_used(i + (UINT32_C(1) << CONN_STEP_SHIFT)))
		sys_madvise(use_at(i), stepped_step_bytes(&uses), MADV_DONTNEED);
}

bool conn_use_flush(struct conn *c)
{
	return exchange(&use_of(c)->flushed, 1) == 0;
}

bool conn_use_unflush(struct conn *c)
{
	return exchange(&use_of(c)->flushed, 0) == 1;
}

bool conn_use_is_leaving(const struct conn *c)
{
	return (load_acquire(&use_of(c)->leaving) & LEAVING_STATE) != LEAVING_NOT;
}

/*
 * What was given up, once nobody from before uses it: that of which `leaving` has spoken, not another one that may have been since. The record is not touched: it may be
 * another connection's by now.
 */
static void take_down_left(struct use *u, uint32_t leaving)
{
	uint32_t number = leaving & ~(uint32_t)LEAVING_STATE;

	if (!compare_exchange(&u->leaving, &leaving, number | LEAVING_NOW))
		return;
	close_link(u);
	fetch_sub(&nr_leaving, 1);
	store_release(&u->leaving, number | LEAVING_NOT);
}

/* The link in this process: relatives keep theirs, and the record still has the values for them. */
static void take_down(struct conn *c)
{
	if (load_acquire(&c->linked)) {
		struct segment mine = c->link.segment;

		if (conn_is_far(c))
			conn_far_leave(c);
		own_fd_close(c->link.rx.bells.bell_fd);
		own_fd_close(c->link.tx.bells.bell_fd);
		segment_close(&mine);
		links_give();
	}
	conn_unmap(c);
}

static uint32_t nr_uses(uint64_t word)
{
	return (uint32_t)(word & (PASSED - 1));
}

static uint32_t nr_passed(uint64_t word)
{
	return (uint32_t)(word / PASSED & (PASSED - 1));
}

/* Never 0. */
static uint32_t era_of(uint64_t word)
{
	return (uint32_t)(word / ERA) + 1;
}

/*
 * Some use has gone. Another may have begun before the link was left, or the record closed, and after the last count: so the count comes behind the look at
 * that, by when no new one can matter.
 */
static void settle(struct conn *c)
{
	struct use *u = use_of(c);
	uint32_t leaving = load_acquire(&u->leaving);
	uint64_t word;

	if (unlikely((leaving & LEAVING_STATE) == LEAVING)) {
		word = load_acquire(&u->nr);
		if (nr_uses(word) == nr_passed(word))
			take_down_left(u, leaving);
	}
	if (unlikely(load_acquire(&u->closing)) && nr_uses(load_acquire(&u->nr)) == 0 && exchange(&u->closing, 0))
		take_down(c);
}

/* Under a lane's lock: it has seen that the link is given up, or will. */
static void pass(struct conn *c, struct conn_sleep *s)
{
	struct use *u = use_of(c);
	uint64_t word = load_relaxed(&u->nr);

	if (s->passed == era_of(word))
		return;
	while (!compare_exchange(&u->nr, &word, word + PASSED))
		;
	/* The era cannot end meanwhile: who ends it has both locks. */
	s->passed = era_of(word);
	settle(c);
}

bool conn_use_parts(struct conn *c)
{
	uint32_t leaving = load_acquire(&use_of(c)->leaving);

	/* Who finds no link from now on knows that one is still there. */
	return (leaving & LEAVING_STATE) == LEAVING_NOT &&
	       compare_exchange(&use_of(c)->leaving, &leaving, leaving + LEAVING_NEXT + LEAVING_SOON);
}

void conn_use_part(struct conn *c)
{
	struct use *u = use_of(c);

	u->segment = c->link.segment;
	u->bells[0] = c->link.rx.bells.bell_fd;
	u->bells[1] = c->link.tx.bells.bell_fd;
	u->engine = c->link.tx.bells.engine;
	/* Who uses the link still finds it, or that there is none. */
	store_unlocked(&c->link.tx.bells.engine, NULL);
	store_unlocked(&c->link.rx.bells.engine, NULL);
	fetch_add(&nr_leaving, 1);
	/* Pairs with conn_hold() and conn_drop(): who is not counted here finds the connection without a link, and who is sees this when it goes. */
	fetch_add(&u->leaving, LEAVING - LEAVING_SOON);
	settle(c);
}

void conn_use_renew(struct conn *c)
{
	struct use *u = use_of(c);
	uint64_t word = load_relaxed(&u->nr);

	while (!compare_exchange(&u->nr, &word, (word & ~(ERA - 1)) + ERA + nr_uses(word)))
		;
}

void conn_hold_locked(struct conn *c)
{
	fetch_add(&use_of(c)->nr, USE);
}

bool conn_hold(struct conn *c, int fd)
{
	/* Pairs with conn_use_close(), which runs after the fd table has forgotten the number. */
	fetch_add(&use_of(c)->nr, USE);
	if (likely(fdtab_get(fd) == c))
		return true;
	conn_drop(c);
	return false;
}

void conn_drop(struct conn *c)
{
	uint64_t word = fetch_sub(&use_of(c)->nr, USE) - USE;

	if (nr_uses(word) == nr_passed(word))
		settle(c);
}

static void drop_passed(struct conn *c, uint32_t era)
{
	struct use *u = use_of(c);
	uint64_t word = load_relaxed(&u->nr);

	while (!compare_exchange(&u->nr, &word, word - USE - (era_of(word) == era ? PASSED : 0)))
		;
	settle(c);
}

void conn_use_close(struct conn *c)
{
	struct use *u = use_of(c);

	exchange(&u->closing, 1);
	settle(c);
}

/* ---- calls that sleep ---------------------------------------------------------------------------------------------- */

static int take_kept(struct use *u)
{
	int fd = (int)exchange(&u->kept, 0) - 1;

	if (fd >= 0)
		fetch_sub(&nr_kept, 1);
	return fd;
}

static void sleeper_gone(struct conn *c, uint32_t passed)
{
	struct use *u = use_of(c);

	if (fetch_sub(&u->sleepers, 1) == 1 && unlikely(load_acquire(&u->kept))) {
		int fd = take_kept(u);

		if (fd >= 0) {
			conn_release_kept(c, fd);
			own_fd_close(fd);
		}
	}
	if (likely(!passed))
		conn_drop(c);
	else
		drop_passed(c, passed);
}

/* It has ended, or never will: cancelled, or jumped out of by a signal handler. */
static void sleep_over(void *arg)
{
	struct conn_sleep *s = arg;
	struct conn *c = s->slept;

	s->slept = NULL;
	if (c)
		sleeper_gone(c, s->passed);
}

void conn_call_sleeps(struct conn *c, struct conn_sleep *s)
{
	struct signals_held held;

	if (s->slept) {
		if (unlikely(conn_use_is_leaving(c)))
			pass(c, s);
		return;
	}
	s->handled = counted_now();
	signals_hold(&held);
	s->passed = 0;
	_pthread_cleanup_push(&s->unwound, sleep_over, s);
	conn_hold_locked(c);
	fetch_add(&use_of(c)->sleepers, 1);
	s->slept = c;
	if (unlikely(conn_use_is_leaving(c)))
		pass(c, s);
	signals_release(&held);
}

bool conn_call_has(const struct conn *c, int fd)
{
	return likely(fdtab_get(fd) == c) || load_acquire(&use_of(c)->kept) == (uint32_t)fd + 1;
}

static bool has_passed(const struct conn *c, const struct conn_sleep *s)
{
	return unlikely(s->passed) && s->passed == era_of(load_relaxed(&use_of(c)->nr));
}

/* Who closes has taken the number out of the table before the lanes are his: then it is known what comes of the sleeping calls. */
int conn_call_number(const struct conn *c)
{
	const struct timespec pause = { .tv_nsec = DECIDE_PAUSE_NS };
	struct use *u = use_of(c);

	for (int i = 0; i < DECIDE_PAUSES; i++) {
		bool decided = load_acquire(&u->closing) || load_acquire(&u->buried);
		int fd = fdtab_next_of(c, 0);

		if (fd < 0)
			fd = (int)load_acquire(&u->kept) - 1;
		if (fd >= 0 || decided)
			return fd;
		(void)sys_nanosleep(&pause);
	}
	return -1;
}

void conn_use_bury(struct conn *c)
{
	store_release(&use_of(c)->buried, 1);
}

int conn_call_waits(struct conn *c, struct conn_sleep *s, int *fd, int what, bool briefly, int64_t deadline_ns)
{
	int r = briefly ? wait_briefly(c, *fd, deadline_ns, &s->handled) :
			  wait_lane(c, *fd, (enum wait_for)what, deadline_ns, &s->handled, has_passed(c, s));

	if (likely(fdtab_get(*fd) == c))
		return r;
	*fd = conn_call_number(c);
	return *fd < 0 || r == WAIT_HANDLED ? -EBADF : r;
}

void conn_call_ends(struct conn *c, struct conn_sleep *s)
{
	struct signals_held held;

	if (likely(!s->slept))
		return;
	signals_hold(&held);
	_pthread_cleanup_pop(&s->unwound, 0);
	sleep_over(s);
	signals_release(&held);
}

bool conn_use_asleep(const struct conn *c)
{
	return load_relaxed(&use_of(c)->sleepers) != 0;
}

bool conn_use_keep(struct conn *c, int fd)
{
	struct use *u = use_of(c);
	int copy;

	if (likely(!load_relaxed(&u->sleepers)) || fd < 0)
		return false;
	copy = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, 0);
	copy = copy < 0 ? copy : own_fd_adopt(copy, NULL);
	if (copy < 0)
		return false;
	fetch_add(&nr_kept, 1);
	exchange(&u->kept, (uint32_t)copy + 1);
	/* Pairs with conn_call_ends(): the last call sees the descriptor, or is seen to have gone. */
	if (load_relaxed(&u->sleepers) || take_kept(u) < 0)
		return true;
	own_fd_close(copy);
	return false;
}
