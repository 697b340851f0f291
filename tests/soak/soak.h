/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_SOAK_H
#define RINGWAY_TESTS_SOAK_H

/*
 * Many connections between a few processes. What each end of each connection does, step by step, is a function of the seed (plan.c); when
 * it does it, and how far a step gets, is not. Every byte is known by its position (bytes.c). An end is plain data, so that a child, a
 * new image, another process or a relative in turn can go on with it.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	SIDES = 2,		/* 0 has connected, 1 has accepted */
	MAX_WORKERS = 16,
	MAX_EVENTS = 4,		/* of one end */
	MAX_ENDS = 128,		/* in one process */
	LONGEST_STEP = 256 << 10,
};

enum event {
#define EVENT(name, weight, threads) EVENT_##name,
#include "events.def"
#undef EVENT
	NR_EVENTS
};

/* ---- the board: a file that all processes and the driver have mapped ---- */

enum row_state { ROW_NONE, ROW_OPEN, ROW_DONE, ROW_ABORTED, ROW_CUT, ROW_KEPT, ROW_FAILED, ROW_PASSED };

enum { OP_TEXT = 24, ERROR_TEXT = 180, ROW_SIZE = 256 };

/* One end of a connection. The driver knows this layout. */
struct row {
	_Atomic uint32_t state;
	int32_t pid;		/* who has it */
	int32_t worker;		/* and of which worker that one descends; of a passed one, to whom it is on its way */
	uint32_t went;		/* times that exec or SCM_RIGHTS handed it on */
	uint64_t tx_pos, rx_pos, nr_steps;
	int32_t fd;
	_Atomic uint32_t port;	/* side 0: its own, by which side 1 knows the connection */
	int32_t ended_by;	/* CUT: errno, or 0 for an end of stream */
	char op[OP_TEXT];
	char error[ERROR_TEXT];
};

struct worker_row {
	_Atomic uint32_t port;
	int32_t pid;
	_Atomic uint32_t ready;	/* incarnations that listen, or have */
	int32_t fds_before, fds_after, maps_after;
	int32_t child_status;	/* of a child that did not end well */
};

struct board {
	uint64_t seed;
	uint32_t nr_conns, nr_workers, nr_threaded, at_once;
	uint64_t longest;	/* stream of one direction */
	_Atomic uint32_t go;	/* all workers listen */
	_Atomic uint32_t thrown[16];
	uint32_t without;	/* a bit for each event that does not befall anybody */
	struct worker_row workers[MAX_WORKERS];
	char pad[3544];
	struct row rows[][SIDES];
};

_Static_assert(sizeof(struct row) == ROW_SIZE, "the driver knows this");
_Static_assert(offsetof(struct board, rows) == 4096, "the driver knows this");
_Static_assert(NR_EVENTS <= 16, "thrown[]");

extern struct board *board;

/* ---- plan.c: all that the seed says ---- */

struct rng {
	uint64_t state;
};

uint64_t mix(uint64_t a, uint64_t b);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n);	/* 0 to n-1 */
uint64_t rng_log(struct rng *r, uint64_t n);	/* 1 to n, each size as likely as its double */
bool rng_one_in(struct rng *r, uint64_t n);

enum fate { FATE_WHOLE, FATE_RESET, FATE_CLOSED };
enum watch { WATCH_TOP, WATCH_LEVEL, WATCH_EDGE, WATCH_EDGE_SHORT, WATCH_ONESHOT, NR_WATCHES };

struct plan {
	uint64_t total[SIDES];		/* bytes that this side sends */
	uint32_t longest[SIDES];	/* of one step */
	uint32_t nr_rounds;		/* of question and answer, before both stream */
	uint32_t round_len;		/* at most, each */
	enum fate fate;			/* WHOLE, or fate_side resets or closes at fate_pos */
	int fate_side;
	uint64_t fate_pos;		/* RESET: of what it sends, CLOSED: of what it has received */
	uint64_t urgent_pos[SIDES];	/* one urgent byte, outside the stream, before this one; UINT64_MAX: none */
	int worker[SIDES];
	enum watch watch[SIDES];
	bool late_end[SIDES];		/* ends its direction by close */
	bool two_threads[SIDES];	/* in a worker with threads: one for each direction */
	uint32_t pace[SIDES];		/* one in so many looks at it sends */
	int nr_events[SIDES];
	struct {
		enum event kind;
		uint32_t step;		/* of sending and receiving together */
	} events[SIDES][MAX_EVENTS];
};

void plan_make(struct plan *p, uint32_t conn);
bool worker_threaded(int worker);
/* How far `side` may have sent when it has received `rx_pos`. */
uint64_t plan_limit(const struct plan *p, uint32_t conn, int side, uint64_t rx_pos);

/* ---- an end ---- */

struct end {
	uint32_t conn;
	int side, fd;
	struct plan plan;
	uint64_t tx_pos, rx_pos;
	uint32_t tx_step, rx_step;
	int next_event;
	bool tx_over, rx_over;		/* this direction has ended, or failed */
	bool closed;
	bool urgent_sent;
	int cut_by;			/* errno, when cut */
	bool cut;
	bool ready_in, ready_out, hung_up;
	bool blocking;
	bool stops_short;		/* the last call may have left something, though it brought less than it was asked for */
	uint32_t looks;
	/* Taken in turn with a relative. */
	int turn_sock;			/* -1: not */
	bool waiting;			/* it is the other's turn */
	uint32_t turn_steps, turns_left;
};

struct row *end_row(const struct end *e);
void end_init(struct end *e, uint32_t conn, int side, int fd);
/* Writes what it is doing, unless that is NULL, and where it stands. */
void end_tell(struct end *e, const char *op);
void end_failed(struct end *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool end_wants_out(const struct end *e);
bool end_wants_in(const struct end *e);
/* One step of sending, of receiving; false when it would have blocked. */
bool end_send(struct end *e);
bool end_receive(struct end *e);
/* Is it the one that resets or closes, and is it time? */
bool end_fate(const struct end *e);
/* Ends its direction, when all is sent. */
void end_shut(struct end *e);
/* Ends what has come to its end; true when all has, and the end is closed. */
bool end_finish(struct end *e);
void end_close(struct end *e, enum row_state state);

/* ---- steps.c: the calls ---- */

/* One call or a few that move up to `len` bytes; bytes, 0 for the end of a stream, -errno. */
ssize_t step_send(struct end *e, struct rng *r, size_t len);
ssize_t step_receive(struct end *e, struct rng *r, size_t len);

/* ---- bytes.c ---- */

void bytes_fill(uint64_t key, uint64_t pos, uint8_t *to, size_t len);
/* -1, or where in `got` the first wrong byte is. */
ssize_t bytes_differ(uint64_t key, uint64_t pos, const uint8_t *got, size_t len);
/* The position near `pos` at which the stream has these bytes; -1 when nowhere. */
int64_t bytes_find(uint64_t key, uint64_t pos, const uint8_t *got, size_t len);
uint64_t stream_key(uint32_t conn, int sender);

/* ---- a process ---- */

struct worker {
	int index;
	int listener, inbox;		/* -1 in a child */
	int level, edge;		/* epoll sets */
	uint32_t next_conn;
	uint32_t looks;
	bool over;			/* nothing more will come */
	int nr_ends;
	struct end *ends[MAX_ENDS];
};

void sets_open(struct worker *w);
void worker_open(struct worker *w);		/* sets, and what is listened on */
void worker_begin(struct worker *w);		/* connects what is due */
bool worker_connect(struct worker *w, struct end *e);
bool worker_accept(struct worker *w, struct end *e);
void worker_hear(struct worker *w);		/* ends that are passed to it, and the word that all is over */
void worker_add(struct worker *w, struct end *e);
void worker_drop(struct worker *w, struct end *e);	/* out of its sets and its list */
/* Takes note of children that have ended; true while there are others. */
bool worker_reap(struct worker *w, bool waits);
void loop_run(struct worker *w);
void threads_run(struct worker *w);
void threads_add(struct worker *w, const struct end *e);
/* Those that the driver throws, which end a process that has no handler. */
void block_signals(bool block);
/* Limits of a child, which ends with its parent. */
void child_limits(pid_t parent);

/* ---- events.c ---- */

/* Lets happen what is due; true when the end is no longer here. */
bool event_due(struct worker *w, struct end *e);
void events_resume(struct worker *w, int fd);
enum { INBOX_NOTHING = -1, INBOX_OVER = -2 };	/* over: a message "o"; any other one only wakes */
struct sockaddr_un;
void inbox_address(struct sockaddr_un *at, int worker);
/* The descriptor of an end that is passed here, or one of the above. */
int inbox_receive(int inbox, struct end *e);
void turn_give(struct worker *w, struct end *e);
void turn_take(struct worker *w, struct end *e);
void turn_end(struct end *e);

#endif
