/* SPDX-License-Identifier: MIT */
/*
 * Memory of sets and registrations, and the list of each connection's registrations. Private to the process: a forked child
 * starts with a copy. Mapped in steps, from the first set on, and never unmapped or given back, so that a look at a record that
 * was freed meanwhile reads a record, if not the one that was meant.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/conn.h"
#include "shim/epoll_set.h"
#include "shim/stepped.h"
#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"

#define POOL_SETS (UINT32_C(1) << 16)
#define POOL_REGS (UINT32_C(1) << 20)
#define SETS_SHIFT 9
#define REGS_SHIFT 12
#define POOL_CONNS CONN_MAX

/*
 * heads[] of a connection: the first registration's id + 1, whether one went unrecorded, and whether it is adopted, in which
 * generation of processes: a child has nothing of a rendezvous that its parent had under way.
 */
#define HEAD_INCOMPLETE UINT32_C(0x80000000)
#define HEAD_ADOPTED UINT32_C(0x40000000)
#define HEAD_FORKS_SHIFT 21
#define HEAD_FORKS (UINT32_C(0x1ff) << HEAD_FORKS_SHIFT)
#define HEAD_FLAGS (HEAD_INCOMPLETE | HEAD_ADOPTED | HEAD_FORKS)

static_assert(POOL_REGS < UINT32_C(1) << HEAD_FORKS_SHIFT, "an id + 1 does not fit");

static struct {
	struct lane_lock lock;
	_Atomic bool ready;
	_Atomic uint32_t *heads;	/* the lists under the lock, the flags without it */
	uint32_t nr_sets;		/* ever used */
	_Atomic uint32_t nr_regs;
	_Atomic uint32_t regs_gone;
	struct epoll_set *free_sets;
	struct epoll_reg *free_regs;
	uint32_t forks;			/* between the first process and this one, as heads[] has it */
} pool;

static struct stepped sets = { sizeof(struct epoll_set), SETS_SHIFT };
static struct stepped regs = { sizeof(struct epoll_reg), REGS_SHIFT };
static_assert(POOL_SETS >> SETS_SHIFT <= STEPPED_MAX && POOL_REGS >> REGS_SHIFT <= STEPPED_MAX, "too many steps");

static inline struct epoll_set *set_at(uint32_t id)
{
	return STEPPED_ROW(&sets, struct epoll_set, SETS_SHIFT, id);
}

static inline struct epoll_reg *reg_at(uint32_t id)
{
	return STEPPED_ROW(&regs, struct epoll_reg, REGS_SHIFT, id);
}

uint64_t epoll_inner_word;

/* Of these this thread may have locked the lanes: see pool_lock(). */
static __thread const struct conn *lanes_of __attribute__((tls_model("initial-exec")));

const struct conn *pool_lanes_of(const struct conn *c)
{
	const struct conn *former = lanes_of;

	lanes_of = c;
	return former;
}

/*
 * The owner of a set's lock, or of the pool's, may be a thread whose signal handler waits for a lane. So who has locked lanes does not wait
 * for it to the end.
 */
static bool lock_contended(struct lane_lock *l)
{
	const struct conn *c = lanes_of;
	bool briefly = c && (lane_is_mine(&c->tx.lock) || lane_is_mine(&c->rx.lock));

	return (briefly ? lane_lock_briefly(l) : lane_lock(l, false)) >= 0;
}

static inline bool lock(struct lane_lock *l)
{
	return likely(lane_trylock(l, false)) || lock_contended(l);
}

/* False: a signal handler inside it, or in haste. */
static bool pool_lock(void)
{
	return lock(&pool.lock);
}

static void *pool_map(size_t bytes)
{
	long at = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(at))
		return NULL;
	mapped_add(bytes);
	return (void *)at;
}

int pool_init(void)
{
	if (load_acquire(&pool.ready))
		return 0;
	if (!pool_lock())
		return -EAGAIN;
	if (!load_relaxed(&pool.ready)) {
		if (!pool.heads)
			pool.heads = pool_map(POOL_CONNS * sizeof(*pool.heads));
		if (sys_getrandom(&epoll_inner_word, sizeof(epoll_inner_word), 0) != sizeof(epoll_inner_word))
			epoll_inner_word = (uintptr_t)pool.heads;
		epoll_inner_word = (epoll_inner_word >> 8) | UINT64_C(0x9a) << 56;
		store_release(&pool.ready, pool.heads && stepped_reach(&sets, 0) == 0 && stepped_reach(&regs, 0) == 0);
	}
	lane_unlock(&pool.lock);
	return load_relaxed(&pool.ready) ? 0 : -ENOMEM;
}

struct epoll_set *pool_set_get(void)
{
	struct epoll_set *s;

	if (!pool_lock())
		return NULL;
	s = pool.free_sets;
	if (s)
		pool.free_sets = s->next_free;
	else if (pool.nr_sets < POOL_SETS && stepped_reach(&sets, pool.nr_sets) == 0)
		s = set_at(pool.nr_sets++);
	lane_unlock(&pool.lock);
	return s;
}

void pool_set_put(struct epoll_set *s)
{
	if (!pool_lock())
		return;
	s->next_free = pool.free_sets;
	pool.free_sets = s;
	lane_unlock(&pool.lock);
}

static uint32_t head_of(const struct conn *c)
{
	return load_acquire(&pool.ready) && c->index < POOL_CONNS ? load_relaxed(&pool.heads[c->index]) : 0;
}

static void change_head(const struct conn *c, uint32_t mask, uint32_t value)
{
	uint32_t head = head_of(c);

	while (!compare_exchange(&pool.heads[c->index], &head, (head & ~mask) | value))
		;
}

static struct epoll_reg *pool_first_locked(const struct conn *c)
{
	uint32_t head = head_of(c) & ~HEAD_FLAGS;

	return head ? reg_at(head - 1) : NULL;
}

static void pool_set_first_locked(const struct conn *c, struct epoll_reg *r)
{
	change_head(c, ~HEAD_FLAGS, r ? r->id + 1 : 0);
}

struct epoll_reg *pool_reg_get(struct conn *c, struct epoll_set *s)
{
	struct epoll_reg *r = NULL;

	if (c->index >= POOL_CONNS)
		return NULL;
	if (!pool_lock()) {
		change_head(c, 0, HEAD_INCOMPLETE);
		return NULL;
	}
	if (pool.free_regs) {
		r = pool.free_regs;
		pool.free_regs = r->in_conn.next;
	} else if (load_relaxed(&pool.nr_regs) < POOL_REGS && stepped_reach(&regs, load_relaxed(&pool.nr_regs)) == 0) {
		r = reg_at(load_relaxed(&pool.nr_regs));
		r->id = load_relaxed(&pool.nr_regs);
		store_relaxed(&pool.nr_regs, r->id + 1);
	}
	if (r) {
		r->conn = c;
		/* Whoever finds it in the connection's list locks its set first. */
		store_relaxed(&r->set, s);
		r->in_conn = (struct reg_link){ NULL, pool_first_locked(c) };
		if (r->in_conn.next)
			r->in_conn.next->in_conn.prev = r;
		pool_set_first_locked(c, r);
	} else {
		change_head(c, 0, HEAD_INCOMPLETE);
	}
	lane_unlock(&pool.lock);
	return r;
}

static void pool_free_locked(struct epoll_reg *r)
{
	uint32_t id = r->id, generation = r->generation;

	memset(r, 0, sizeof(*r));
	r->id = id;
	r->generation = generation + 1;
	r->in_conn.next = pool.free_regs;
	pool.free_regs = r;
}

void pool_reg_put(struct epoll_reg *r)
{
	r->state = REG_DEAD;
	/* Then the set's next look does it. */
	if (!pool_lock()) {
		reg_stir(r);
		return;
	}
	if (r->conn) {
		if (r->in_conn.next)
			r->in_conn.next->in_conn.prev = r->in_conn.prev;
		if (r->in_conn.prev)
			r->in_conn.prev->in_conn.next = r->in_conn.next;
		else
			pool_set_first_locked(r->conn, r->in_conn.next);
	}
	r->conn = NULL;
	fetch_add(&pool.regs_gone, 1);
	if (!load_relaxed(&r->stirred))
		pool_free_locked(r);
	lane_unlock(&pool.lock);
}

uint32_t pool_regs_gone(void)
{
	return load_acquire(&pool.regs_gone);
}

struct epoll_reg *pool_reg_of_token(struct epoll_set *s, uint64_t token)
{
	uint32_t id = (uint32_t)token;
	struct epoll_reg *r;

	if (id >= load_relaxed(&pool.nr_regs))
		return NULL;
	r = reg_at(id);
	if (load_relaxed(&r->set) != s || token != token_make(token_kind(token), r))
		return NULL;
	return r->state == REG_PLAIN || r->state == REG_ADOPTED || r->state == REG_PARKED ? r : NULL;
}

bool pool_incomplete(struct conn *c)
{
	return c->index >= POOL_CONNS || head_of(c) & HEAD_INCOMPLETE;
}

void pool_conn_reset(struct conn *c)
{
	if (head_of(c))
		change_head(c, HEAD_FLAGS, 0);
}

static int set_flags(const struct conn *c, uint32_t mask, uint32_t flags)
{
	int err = c->index < POOL_CONNS ? pool_init() : -ENOMEM;

	if (!err)
		change_head(c, mask, flags);
	return err;
}

int pool_set_adopted(struct conn *c, bool adopted)
{
	return set_flags(c, HEAD_ADOPTED | HEAD_FORKS, adopted ? HEAD_ADOPTED | pool.forks : 0);
}

void pool_set_incomplete(struct conn *c)
{
	set_flags(c, HEAD_INCOMPLETE, HEAD_INCOMPLETE);
}

bool pool_is_adopted(const struct conn *c)
{
	return (head_of(c) & (HEAD_ADOPTED | HEAD_FORKS)) == (HEAD_ADOPTED | pool.forks);
}

bool pool_derives(const struct conn *c)
{
	return conn_is_linked(c) || pool_is_adopted(c);
}

bool pool_has_left(const struct conn *c)
{
	return pool_first_locked(c);
}

bool pool_has_regs(const struct conn *c)
{
	return head_of(c);
}

bool pool_for_each(struct conn *c, void (*fn)(struct epoll_reg *r, void *arg), void *arg)
{
	if (!pool_has_regs(c))
		return true;
	if (!pool_lock())
		return false;
	for (struct epoll_reg *r = pool_first_locked(c); r; r = r->in_conn.next)
		fn(r, arg);
	lane_unlock(&pool.lock);
	return true;
}

static struct epoll_reg *pool_nth_unlocked(const struct conn *c, unsigned n)
{
	struct epoll_reg *r = pool_first_locked(c);

	while (r && (r->state == REG_DEAD || n--))
		r = r->in_conn.next;
	return r;
}

struct epoll_reg *pool_find(struct conn *c, const struct epoll_set *s, bool (*is_it)(const struct epoll_reg *r, int fd), int fd)
{
	struct epoll_reg *r;

	if (!pool_has_regs(c) || !pool_lock())
		return NULL;
	for (r = pool_first_locked(c); r; r = r->in_conn.next)
		if (load_relaxed(&r->set) == s && is_it(r, fd))
			break;
	lane_unlock(&pool.lock);
	return r;
}

/*
 * The pool's lock is the inner one, so the registration is found under it, and looked at again once its set is locked: it
 * may have moved on meanwhile, and then the search starts again.
 */
int pool_nth_locked(struct conn *c, unsigned n, struct epoll_reg **found)
{
	while (pool_has_regs(c)) {
		struct epoll_reg *r;
		struct epoll_set *s = NULL;
		uint32_t generation = 0;

		if (!pool_lock())
			return -EAGAIN;
		r = pool_nth_unlocked(c, n);
		if (r) {
			s = load_relaxed(&r->set);
			generation = r->generation;
		}
		lane_unlock(&pool.lock);
		if (!r)
			break;
		if (!lock(&s->lock))
			return -EAGAIN;
		if (r->generation == generation && load_relaxed(&r->set) == s && r->conn == c && r->state != REG_DEAD) {
			*found = r;
			return 1;
		}
		set_unlock(s);
	}
	return 0;
}

void pool_for_each_set(void (*fn)(struct epoll_set *s))
{
	for (uint32_t i = 0; i < pool.nr_sets; i++)
		if (set_at(i)->live)
			fn(set_at(i));
}

bool pool_for_each_record(uint32_t *from, bool (*fn)(struct epoll_set *s))
{
	for (uint32_t end = pool.nr_sets; *from < end; ++*from)
		if (!fn(set_at(*from)))
			return false;
	return true;
}

bool pool_has_records(uint32_t nr)
{
	return pool.nr_sets == nr;
}

int64_t pool_nested_probe_at(void)
{
	int64_t first = 0;

	for (uint32_t i = 0; i < pool.nr_sets; i++) {
		struct epoll_set *s = set_at(i);
		int64_t at = s->live && load_relaxed(&s->nested) ? load_relaxed(&s->probe_at) : 0;

		if (at && (!first || at < first))
			first = at;
	}
	return first;
}

/* A handler that forks inside the pool's lock keeps what it has: the lock is recursive for the fork alone. */
static bool pool_fork_holds;

const struct lane_lock *pool_fork_prepare(bool regardless)
{
	int err = lane_lock_briefly(&pool.lock);

	pool_fork_holds = err >= 0;
	return err >= 0 || err == -EDEADLK || regardless ? NULL : &pool.lock;
}

void pool_fork_release(bool child)
{
	if (child) {
		store_relaxed(&pool.lock.owner, 0);
		pool.forks = (pool.forks + (UINT32_C(1) << HEAD_FORKS_SHIFT)) & HEAD_FORKS;
	} else if (pool_fork_holds)
		lane_unlock(&pool.lock);
}
