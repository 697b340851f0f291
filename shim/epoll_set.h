/* SPDX-License-Identifier: MIT */
/*
 * The inside of epoll.h: a set, its registrations, and what the epoll_*.c files call of each other.
 *
 * A registration of a TCP connection is *plain* (it is in the program's kernel set, exactly as the program put it there) or
 * *adopted* (it is in the inner set, edge-triggered and for everything, and we derive what the program is told). It is
 * known by the number the program used and the connection behind it, as the kernel knows it by number and file.
 *
 * Lock order: lane locks, then set->lock, then the pool's lock. Nothing waits for a lane lock while it holds a set's, so the
 * lane functions called from here only try; but a signal handler does, and so who has locked lanes waits for a set's lock, or the pool's, only
 * briefly, and does without (pool_lanes_of()). Queues belong to set->lock; only `stirred` is written without it.
 */
#ifndef RINGWAY_SHIM_EPOLL_SET_H
#define RINGWAY_SHIM_EPOLL_SET_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "shim/idle.h"
#include "shim/lane_lock.h"
#include "ringbuf/atomic.h"

struct conn;

/* Bits of epoll_event.events that ask for a state, as poll has them; the others say how it is reported. */
#define EPOLL_STATES (EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDNORM | EPOLLRDBAND | EPOLLWRNORM | \
		      EPOLLWRBAND | EPOLLMSG | EPOLLRDHUP)
#define EPOLL_ALWAYS (EPOLLERR | EPOLLHUP)
/* How an adopted registration stands in the inner set; never changed, so a program's EPOLL_CTL_MOD costs no system call. */
#define EPOLL_INNER_EVENTS (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET)

/* Polled at every wait without being armed: at most so many, the rest sleep armed. */
#define EPOLL_HOT_MAX 64
#define EPOLL_POKES 32
/* Removed by the program, but left in the inner set, see reg_park(). */
#define EPOLL_PARKED_MAX 256

enum reg_state {
	REG_FREE,
	REG_PLAIN,
	REG_ADOPTED,
	REG_PARKED,	/* not registered any more; the inner set has kept its members, in case it comes back */
	REG_DEAD,	/* to be freed when it is popped off `stirred` */
};

struct reg_list {
	struct epoll_reg *first, *last;
};

struct reg_link {
	struct epoll_reg *prev, *next;
};

struct epoll_reg {
	_Atomic(struct epoll_set *) set;
	struct conn *conn;
	int fd;			/* the number the program used */
	uint32_t events;	/* as the program gave them; what a fired one-shot leaves is `fired` */
	uint64_t data;
	uint32_t id;		/* place in the pool, never changes */
	uint32_t generation;	/* grows when the place is used anew */
	uint8_t state;		/* enum reg_state */
	bool fired;		/* EPOLLONESHOT has reported: silent until EPOLL_CTL_MOD */
	bool queued;		/* on set->queue: to be looked at by the next wait */
	bool aside;		/* on set->told instead: told in a wait that is not over */
	bool hot;		/* on set->hot: polled, not armed */
	bool dozing;		/* on set->dozing: armed for one sleep, hot again after it */
	bool edge;		/* report once even if nothing new came: after ADD and MOD */
	bool wanted;		/* the rendezvous was put off until the program re-arms this one-shot */
	bool fresh;		/* inside the ADD or MOD that armed it: its state is known */
	bool rung;		/* a bell of it, since it was armed */
	bool no_room;		/* the last look at the ring found none */
	bool undecided;		/* the kernel has reported bytes that may be none of the program's, which nobody could tell by then */
	bool unsure;		/* adopted with what the kernel may still have had to tell: its first report is news */
	bool unexplained;	/* the kernel has named room alone, while that was the ring's to say */
	bool shut_seen;		/* the kernel has reported something since this end shut its direction, or that was before */
	bool in_room_set;	/* epoll_room.c */
	bool room_said;		/* ... room has come in the kernel's socket since the last look */
	short armed;		/* POLLIN | POLLOUT: counted as a sleeper of these lanes */
	uint32_t kernel_events;	/* what the kernel reported since the last look */
	uint32_t kernel_mask;	/* the kernel's word at the last look that may still hold */
	uint64_t rx_seen, tx_seen; /* edge counts at the last look, conn_rx_edge() and conn_tx_edge() */
	uint64_t tail_seen;	/* arrivals in the ring that have been told, or were taken */
	uint64_t tail_looked;	/* at the last look */
	uint32_t quiet_looks;	/* in a row while hot */
	uint32_t armed_tick;	/* plain: set->tick when the program last armed it */
	_Atomic uint8_t stirred;	/* on set->stirred */
	struct epoll_reg *next_stirred;
	struct reg_link in_set, in_queue, in_hot; /* in_hot: of hot, dozing or parked */
	struct reg_link in_conn; /* pool lock */
};

struct epoll_set {
	struct lane_lock lock;
	_Atomic int nr_waiters;	/* asleep in the kernel, or about to be */
	_Atomic uint8_t waits_alone; /* the only thread is in the kernel's own wait on it, or was until a handler jumped out */
	bool fork_locked;
	bool live;
	bool inherited;		/* made by an ancestor: its kernel set is shared with it */
	_Atomic uint8_t nested;	/* another set, poll or select watches this one's fd */
	_Atomic uint8_t has_inner; /* `inner` stands; read without the lock, its maker stirs what it puts in */
	_Atomic uint8_t nests;	/* a set has been a member of this one */
	bool watches;		/* the watch on the family is in the inner set */
	bool relative_ended;	/* it said so: to be followed when the lock can be given away */
	int epfd;		/* a number of this process that names it */
	int nr_numbers;
	int nr_users;		/* threads between epoll_set_enter() and _leave() */
	int inner;		/* the inner set, hidden; -1 until a connection is adopted or negotiates */
	int room;		/* epoll_room.c: a set in it, hidden; -1 until a registration waits for edges of room alone */
	int kick;		/* an eventfd in the inner set: wakes a waiter for what no fd says */
	_Atomic int32_t nr_adopted; /* read without the lock as has_inner is */
	uint32_t nr_hot, nr_parked;
	_Atomic uint32_t tick;	/* grows with each kernel wait that returned everything there was */
	uint32_t everything_seen;
	uint32_t turn;		/* who goes first where events do not fit: the kernel's or ours */
	int64_t looked_ns;	/* when the kernel was last asked */
	_Atomic int64_t probe_at; /* when the first of those that wait for room has to be looked at (conn_probe.h); 0: none */
	_Atomic(struct epoll_reg *) stirred;	/* pushed without the lock */
	struct reg_list regs, queue, told, hot, dozing, parked;
	struct conn *pokes[EPOLL_POKES]; /* whose rendezvous has a step to make, when the wait at hand is over */
	int nr_pokes;
	struct epoll_set *next_free;
};

/* Data words of the inner set's members: what it is, and which registration in which life. */
enum token_kind {
	TOKEN_SOCKET,
	TOKEN_BELL,
	TOKEN_WATCH,
	TOKEN_KICK,
	TOKEN_LINK,	/* what carries a far connection's bytes has something */
};

#define TOKEN_KIND_SHIFT 61
#define TOKEN_GENERATION UINT64_C(0x1fffffff)

static inline uint64_t token_make(enum token_kind kind, const struct epoll_reg *r)
{
	return (uint64_t)kind << TOKEN_KIND_SHIFT | (r->generation & TOKEN_GENERATION) << 32 | r->id;
}

static inline enum token_kind token_kind(uint64_t token)
{
	return (enum token_kind)(token >> TOKEN_KIND_SHIFT);
}

#define TOKEN_ROOM_SET ((uint64_t)TOKEN_KICK << TOKEN_KIND_SHIFT | (UINT32_MAX - 1))
#define TOKEN_FAMILY ((uint64_t)TOKEN_KICK << TOKEN_KIND_SHIFT | UINT32_MAX)

/* The data word of the inner set in the program's set. No pointer and no small number: its top bits are no address. */
extern uint64_t epoll_inner_word;

/* False: this thread holds it already, so the caller is a signal handler and must do without. */
static inline bool set_lock(struct epoll_set *s)
{
	return lane_lock(&s->lock, false) != -EDEADLK;
}

static inline void set_unlock(struct epoll_set *s)
{
	lane_unlock(&s->lock);
}

/* ---- epoll_pool.c: memory, and the list of a connection's registrations -------------------------------------------- */

/*
 * What this thread does from now on may be done with the lanes of c locked: NULL, or what this has returned, when it is not any more.
 */
const struct conn *pool_lanes_of(const struct conn *c);
/* At the first set. 0, -ENOMEM, or -EAGAIN as pool_nth_locked(). */
int pool_init(void);
struct epoll_set *pool_set_get(void);
void pool_set_put(struct epoll_set *s);
/* Linked into its connection's list, not into the set's. Caller holds s->lock. NULL: no memory, and then the connection cannot be adopted any more. */
struct epoll_reg *pool_reg_get(struct conn *c, struct epoll_set *s);
/* Out of the connection's list and free, now or when it is popped off `stirred`. */
void pool_reg_put(struct epoll_reg *r);
/* The registration of a token, if it still lives in `s`. Caller holds s->lock. */
struct epoll_reg *pool_reg_of_token(struct epoll_set *s, uint64_t token);
/* Did a registration of this connection go unrecorded? Until pool_conn_reset(), when its record ends. */
bool pool_incomplete(struct conn *c);
void pool_set_incomplete(struct conn *c);
void pool_conn_reset(struct conn *c);
/* From ready_adopt() to ready_disown(): what is registered meanwhile goes to the inner set at once. As pool_init(). */
int pool_set_adopted(struct conn *c, bool adopted);
bool pool_is_adopted(const struct conn *c);
/* Calls fn for each registration of the connection, under the pool's lock; false if that could not be had. */
bool pool_for_each(struct conn *c, void (*fn)(struct epoll_reg *r, void *arg), void *arg);
/*
 * The first registration of the connection in `s` that is the one, or NULL. The caller holds the lock of `s`. In one go: others of the
 * connection come and go meanwhile, in other sets.
 */
struct epoll_reg *pool_find(struct conn *c, const struct epoll_set *s, bool (*is_it)(const struct epoll_reg *r, int fd), int fd);
/*
 * The n-th registration of the connection, with its set's lock taken: 1; 0: there is none; -EAGAIN: a lock could not be had, because the caller
 * is a signal handler inside it, or has lanes locked.
 */
int pool_nth_locked(struct conn *c, unsigned n, struct epoll_reg **found);
/* Grows with each registration that goes, of whichever connection. */
uint32_t pool_regs_gone(void);
bool pool_has_regs(const struct conn *c);
/* Without the lock: is there a registration still? */
bool pool_has_left(const struct conn *c);
/* Is it on rings, or about to be? */
bool pool_derives(const struct conn *c);
void pool_for_each_set(void (*fn)(struct epoll_set *s));
/* Free ones, too, from the one of that number on, until fn says no: then `from` is that one's. */
bool pool_for_each_record(uint32_t *from, bool (*fn)(struct epoll_set *s));
bool pool_has_records(uint32_t nr);
/* The earliest probe of the sets that are watched from outside; 0: none. */
int64_t pool_nested_probe_at(void);
/* NULL, or what is locked for long; `regardless`, it goes on without. */
const struct lane_lock *pool_fork_prepare(bool regardless);
void pool_fork_release(bool child);

static inline void list_append(struct reg_list *list, struct epoll_reg *r, size_t link)
{
#define LINK(reg) ((struct reg_link *)((char *)(reg) + link))
	LINK(r)->prev = list->last;
	LINK(r)->next = NULL;
	if (list->last)
		LINK(list->last)->next = r;
	else
		list->first = r;
	list->last = r;
}

static inline void list_remove(struct reg_list *list, struct epoll_reg *r, size_t link)
{
	struct reg_link *l = LINK(r);

	if (l->prev)
		LINK(l->prev)->next = l->next;
	else
		list->first = l->next;
	if (l->next)
		LINK(l->next)->prev = l->prev;
	else
		list->last = l->prev;
	l->prev = l->next = NULL;
#undef LINK
}

/* ---- epoll.c ------------------------------------------------------------------------------------------------------- */

/* The set behind epfd, locked and in use; NULL: leave it to the kernel. */
struct epoll_set *epoll_set_enter(int epfd);
/* The other end; `s` is locked, and is not any more. May free it. */
void epoll_set_leave(struct epoll_set *s);

/* ---- epoll_reg.c: one registration. All with r->set->lock held ------------------------------------------------------ */

struct epoll_reg *reg_find(struct epoll_set *s, struct conn *c, int fd);
/* A plain one-shot that is known to have fired. */
bool reg_has_fired(const struct epoll_reg *r);
/* From the kernel set to the inner one. 0 or -errno, and then nothing has changed. */
int reg_adopt(struct epoll_reg *r);
/* Instead of the program's EPOLL_CTL_MOD, which would arm it so. It is in one of the sets afterwards. 0, or what the kernel's would be refused for. */
int reg_adopt_armed(struct epoll_reg *r, const struct epoll_event *event);
/* Straight into the inner set: the connection is adopted already. 0 or -errno as epoll_ctl. */
int reg_add_adopted(struct epoll_reg *r);
/* The same for a one-shot that has fired, and that the kernel's set does not have. */
int reg_adopt_fired(struct epoll_reg *r);
void reg_disown(struct epoll_reg *r);
/* Its connection ends and its socket does not: the kernel's again, and known for the next connection. */
void reg_outlive(struct epoll_reg *r);
/* Its link goes, and it stays adopted. */
void reg_part(struct epoll_reg *r);
/* It has nothing to tell. What ready_disown() could not reach is the kernel's again then: true. */
bool reg_go_home(struct epoll_reg *r);
/* Out of the inner set (if `in_kernel`) and all lists, and freed. */
void reg_remove(struct epoll_reg *r, bool in_kernel);
/* For EPOLL_CTL_DEL and the EPOLL_CTL_ADD that may follow: removed for the program, at no cost if it comes back. */
bool reg_may_park(const struct epoll_reg *r);
void reg_park(struct epoll_reg *r);
void reg_unpark(struct epoll_reg *r);
/* What is parked of a connection in this set, or NULL. */
struct epoll_reg *reg_parked(struct epoll_set *s, struct conn *c);
void set_empty_park(struct epoll_set *s);
void reg_queue(struct epoll_reg *r);
void reg_unqueue(struct epoll_reg *r);
void reg_put_aside(struct epoll_reg *r);
void reg_heat(struct epoll_reg *r);
/* Neither hot nor dozing any more. */
void reg_cool(struct epoll_reg *r);
void reg_doze(struct epoll_reg *r);
void reg_rouse(struct epoll_reg *r);
void reg_disarm(struct epoll_reg *r);
/* The same for whoever knows that the link still stands. */
void reg_disarm_held(struct conn *c, short armed, bool rung);
/* Makes sure that the peer will ring; true: something is there already, it is queued and not armed. */
bool reg_arm(struct epoll_reg *r);
/* What the program is to be told now; 0: nothing. */
uint32_t reg_evaluate(struct epoll_reg *r);
/* How many bytes have ever arrived in the ring. */
uint64_t reg_arrived(const struct conn *c);
/* Has anything come since the last look? A few loads. */
bool reg_has_news(struct epoll_reg *r);
/* A number of this process that names the connection, or -1. */
int reg_living_fd(const struct epoll_reg *r);
int set_make_inner(struct epoll_set *s);
/* Before a sleep: a relative that ends ends it. */
void set_watch_family(struct epoll_set *s);
/* Adds the fd that the rendezvous of r's connection waits for, or takes it away. */
int reg_watch(struct epoll_reg *r, int fd);
void reg_unwatch(struct epoll_reg *r, int fd);
/* epoll_room.c: whoever waits for edges of room alone stands where the kernel tells of nothing else; without effect on others, and where that cannot be. */
void reg_await_room(struct epoll_reg *r);
void reg_await_room_no_more(struct epoll_reg *r);
/* What holds is told in any case: what has been said of it so far is no news. */
void reg_forget_room(struct epoll_reg *r);
/* Is there room in the kernel's socket that was not there before, given what the inner set has reported since the last look? */
bool reg_room_came(struct epoll_reg *r, uint32_t reported);
void set_drain_room(struct epoll_set *s);
/* A bell of it rang. */
void reg_rung(struct epoll_reg *r);
/* Its far link has something. */
void reg_link_rung(struct epoll_reg *r);

/* Pushes r for the set's next look and wakes a waiter. No lock needed. */
void reg_stir(struct epoll_reg *r);
void set_kick(struct epoll_set *s);

/* ---- epoll_early.c: registrations of sockets that are not connected yet --------------------------------------------- */

void epoll_early_note(struct epoll_set *s, int op, int fd, const struct epoll_event *event);
/* A one-shot that has fired, and that only we know of: neither set of the kernel has it. */
void epoll_early_note_fired(struct epoll_set *s, int fd, const struct epoll_event *event);
bool epoll_early_has_fired(const struct epoll_set *s, int fd);
void epoll_early_forget_set(struct epoll_set *s);
const struct lane_lock *epoll_early_fork_prepare(bool regardless);
void epoll_early_fork_release(bool child);

/* ---- epoll_ctl.c, epoll_wait.c: as the libc call, but -errno -------------------------------------------------------- */

/* The same for a TCP socket that has no connection yet. */
int epoll_set_ctl_early(int epfd, int op, int fd, struct epoll_event *event);
/* A registration that the kernel has taken. With the set's lock held. NULL: no memory. */
struct epoll_reg *reg_note(struct epoll_set *s, int fd, struct conn *c, const struct epoll_event *event);
int epoll_set_ctl(int epfd, int op, int fd, struct conn *c, struct epoll_event *event);
/* What is left of n events that the kernel's call has told; -EAGAIN: nothing is, and it is to be looked at more closely. */
int epoll_set_told(int epfd, struct epoll_set *s, struct epoll_event *events, int n, int max);
/* timeout_ns < 0: for ever. */
int epoll_set_wait(int epfd, struct epoll_event *events, int nr_events, int64_t timeout_ns, const sigset_t *mask, uint64_t handled);
/* ---- epoll_queue.c: with the lock held ------------------------------------------------------------------------------ */

/* Takes what was stirred into the queue, and frees what was forgotten. */
void set_take_stirred(struct epoll_set *s);
/* Takes from the queue what there is to tell; how much. */
int set_collect(struct epoll_set *s, struct epoll_event *events, int max);
/* When the wait is over; `full`: its events did not all fit. */
void set_requeue_told(struct epoll_set *s, bool full);
bool set_arm_all(struct epoll_set *s);
/* Those that wait for room behind their peer's end, if the time of one has come. */
void set_queue_probes(struct epoll_set *s, int64_t now);
void set_rouse_all(struct epoll_set *s);
/* Reads the inner set into registrations and pokes. The first is false where there are more pokes than are remembered. */
bool set_drain_inner(struct epoll_set *s);
void set_drain(struct epoll_set *s);
/* True if there were any; drops the lock meanwhile. */
bool set_run_pokes(struct epoll_set *s);
/* Whoever sleeps on the set now, or on a set around it, must not depend on this thread's coming back. */
void set_settle(struct epoll_set *s);

static inline bool set_is_plain(const struct epoll_set *s)
{
	return !load_acquire(&((struct epoll_set *)s)->has_inner);
}

/* There is nothing in it that the kernel does not know: all that the inner set has may be a rendezvous under way. */
static inline bool set_is_kernels(const struct epoll_set *set)
{
	struct epoll_set *s = (struct epoll_set *)set;

	return set_is_plain(s) || (!load_relaxed(&s->nr_adopted) && !load_relaxed(&s->stirred));
}

/* Must who puts something into the set, or on its list, see to it that a sleeper hears of that? */
static inline bool set_has_waiter(struct epoll_set *s)
{
	return load_relaxed(&s->nr_waiters) > 0 || load_relaxed(&s->waits_alone);
}

/*
 * May a wait on it be the kernel's own call, while waits_alone is set, and with epoll_set_told() behind it? A handler that comes between this look and
 * the call is the only one who could put something into the set. It would end the sleep, so no part of the timeout may have to be known.
 */
static inline bool epoll_set_is_left_alone(const struct epoll_set *set, bool timed)
{
	struct epoll_set *s = (struct epoll_set *)set;

	return __libc_single_threaded && set_is_kernels(s) && !load_relaxed(&s->nests) && !load_relaxed(&s->probe_at) &&
	       !idle_is_watched() && (!timed || set_is_plain(s));
}

/* True once for each time that a handler could not say what had changed. */
bool ready_everything_changed(uint32_t *seen);
/*
 * The set's fd is watched from outside, by poll, select or another set: from now on every wait leaves all of it armed behind.
 * Called again before each look from outside, because what was ready may have been read since.
 */
void epoll_set_nest(struct epoll_set *s);
/* Before a look at the fd of `s` from outside, or a wait on it: the sets in it say what is so now. */
void epoll_set_refresh(struct epoll_set *s);
/* No sleep on it, or on sets in it, goes past the time at which one of them has to be looked at. In whole milliseconds. */
int64_t epoll_set_until_probe(const struct epoll_set *s, int64_t left_ns);
/* Is there anything in it, or in sets in it, that the kernel does not know? */
bool epoll_set_concerns_us(const struct epoll_set *s);

#endif
