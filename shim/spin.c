/* SPDX-License-Identifier: MIT */
/*
 * How long to spin before sleeping. Spinning pays where the answer comes sooner than a sleep and a wake-up take, and where the
 * CPU has nothing else to do. `auto` learns both from results, for the process as a whole: what came within that time keeps the
 * budget up, what came later or not at all halves it, and a budget that has come to nothing is tried again after
 * a number of waits that doubles with each failure and shrinks slowly with success.
 *
 * What a sleep and a wake-up take is some microseconds on a machine of one's own, and a hundred in a guest whose idle CPUs are given away. So waits that
 * end asleep are timed, and a hit pays if it took at most five eighths of what they take: between two that sleep such a wait has two wake-ups in it, and whoever
 * spins is spared one. A try lasts as long as such a wait, or two that have given up would never find back to spinning.
 *
 * A spin that took far longer than its budget was preempted: there are more threads than CPUs. Then spinning takes the CPU from the very thread
 * that is waited for, and the scheduler, to which a process that never sleeps is one that computes, gives it the CPU back last: in a crowd those are served
 * first that have slept. So of the time that passes only a small part may be lost in spins: what is lost is paid for by a long multiple of it
 * without spinning, less what has passed since the last time. That bounds what trying costs, however crowded it is, and what interrupts a
 * process that has its CPU to itself, now and then and for a moment, is paid for already.
 */
#include <sched.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/counted.h"
#include "shim/options.h"
#include "shim/wait.h"

#define BUDGET_MAX_NS 50000u
#define BUDGET_START_NS 20000u
#define BUDGET_TRY_NS 20000u
#define BUDGET_LEAST_NS 2500u
#define SLACK_NS 5000u
#define PAYS_NS 12000u
/* Who sleeps longer waits for something else than wake-ups. */
#define SLEEP_MAX_NS 250000u
#define PREEMPTED_NS 50000u
#define LOST_TIMES 32
#define LOST_PAID_MAX_NS INT64_C(100000000)	/* paid for in advance at most: a loss of 3 ms */
#define LOST_OWED_MAX_NS INT64_C(2000000000)
#define SKIP_MIN 16u
#define SKIP_MAX 1024u
#define HITS_PER_SHRINK 64u
#define CHECKS_PER_CLOCK 16

/* Races between threads only make it learn a little worse. */
static struct {
	_Atomic uint32_t nr_cpus;	/* 0: not asked yet */
	_Atomic uint32_t budget_ns;
	_Atomic uint32_t skip;		/* waits until the next try, while the budget is 0 */
	_Atomic uint32_t next_skip;
	_Atomic uint32_t hits;		/* since next_skip last shrank */
	_Atomic uint32_t asleep_ns;	/* what a wait takes that ends asleep; 0: not known */
	_Atomic int64_t paid_until;	/* what was lost is paid for at that time, at LOST_TIMES */
	_Atomic uint8_t owes;		/* until then no spinning */
} spin;

static uint32_t usable_cpus(void)
{
	uint64_t mask[128 / 8] = { 0 };
	long bytes = sys_call3(SYS_sched_getaffinity, 0, sizeof(mask), mask);
	uint32_t nr = 0;

	for (long i = 0; i < bytes / 8; i++)
		nr += (uint32_t)__builtin_popcountll(mask[i]);
	return nr ? nr : 1;
}

static bool owes(int64_t now)
{
	if (likely(!load_relaxed(&spin.owes)))
		return false;
	if (now < load_relaxed(&spin.paid_until))
		return true;
	store_relaxed(&spin.owes, 0);
	return false;
}

static uint32_t at_least(uint32_t ns, uint32_t least_ns)
{
	return ns > least_ns ? ns : least_ns;
}

static uint32_t pays_ns(void)
{
	return at_least(load_relaxed(&spin.asleep_ns) / 8 * 5, PAYS_NS);
}

int64_t spin_sleep_begins(void)
{
	if (options.spin_us != OPTION_SPIN_AUTO || load_relaxed(&spin.nr_cpus) == 1 || clock_counter_lost())
		return 0;
	return now_ns();
}

void spin_slept(int64_t ns)
{
	uint32_t known = load_relaxed(&spin.asleep_ns), told = (uint32_t)ns;

	if (ns <= 0 || ns > SLEEP_MAX_NS)
		return;
	/* Quickly down: what is short was not the machine's doing. */
	if (!known)
		known = told;
	else if (told < known)
		known -= (known - told) / 4;
	else
		known += (told - known) / 16;
	store_relaxed(&spin.asleep_ns, known);
}

uint32_t spin_budget_ns(void)
{
	return spin_budget_at(unlikely(load_relaxed(&spin.owes)) ? now_ns() : 0);
}

uint32_t spin_budget_at(int64_t now)
{
	uint32_t skip;

	if (clock_counter_lost())
		return 0;
	if (options.spin_us != OPTION_SPIN_AUTO)
		return options.spin_us > UINT32_MAX / 1000 ? UINT32_MAX : (uint32_t)options.spin_us * 1000;
	if (unlikely(!load_relaxed(&spin.nr_cpus))) {
		store_relaxed(&spin.budget_ns, BUDGET_START_NS);
		store_relaxed(&spin.next_skip, SKIP_MIN);
		store_relaxed(&spin.nr_cpus, usable_cpus());
	}
	if (load_relaxed(&spin.nr_cpus) == 1)
		return 0;
	if (load_relaxed(&spin.budget_ns))
		return load_relaxed(&spin.budget_ns);
	if (owes(now))
		return 0;
	skip = load_relaxed(&spin.skip);
	if (skip) {
		store_relaxed(&spin.skip, skip - 1);
		return 0;
	}
	return at_least(load_relaxed(&spin.asleep_ns) / 4 * 5, BUDGET_TRY_NS);
}

static void give_up_for_a_while(void)
{
	uint32_t waits = load_relaxed(&spin.next_skip);

	store_relaxed(&spin.budget_ns, 0);
	store_relaxed(&spin.skip, waits);
	store_relaxed(&spin.next_skip, waits * 2 > SKIP_MAX ? SKIP_MAX : waits * 2);
	store_relaxed(&spin.hits, 0);
}

/* Nothing changes where it is paid for: the CPU is the process's own again. */
static void note_lost(uint32_t lost_ns, int64_t now)
{
	int64_t until = load_relaxed(&spin.paid_until);

	if (until < now - LOST_PAID_MAX_NS)
		until = now - LOST_PAID_MAX_NS;
	until += (int64_t)lost_ns * LOST_TIMES;
	if (until > now + LOST_OWED_MAX_NS)
		until = now + LOST_OWED_MAX_NS;
	store_relaxed(&spin.paid_until, until);
	if (until <= now)
		return;
	store_relaxed(&spin.owes, 1);
	store_relaxed(&spin.budget_ns, 0);
	store_relaxed(&spin.skip, 0);
}

static void note_hit(void)
{
	uint32_t skip = load_relaxed(&spin.next_skip);

	count_add(&spin.hits, 1);
	if (load_relaxed(&spin.hits) < HITS_PER_SHRINK)
		return;
	store_relaxed(&spin.hits, 0);
	store_relaxed(&spin.next_skip, skip / 2 > SKIP_MIN ? skip / 2 : SKIP_MIN);
}

bool spin_pays(void)
{
	if (options.spin_us != OPTION_SPIN_AUTO)
		return options.spin_us != 0;
	return load_relaxed(&spin.budget_ns) != 0;
}

bool spin_allowed(void)
{
	return options.spin_us && load_relaxed(&spin.nr_cpus) != 1 && !load_relaxed(&spin.owes);
}

void spin_result(bool hit, uint32_t budget_ns, uint32_t spent_ns, int64_t now)
{
	uint32_t budget = load_relaxed(&spin.budget_ns), pays = pays_ns();

	if (options.spin_us != OPTION_SPIN_AUTO)
		return;
	if (spent_ns > PREEMPTED_NS + budget_ns) {
		note_lost(spent_ns, now);
	} else if (hit && spent_ns <= pays) {
		uint32_t wanted = spent_ns * 4 + SLACK_NS, most = at_least(2 * pays, BUDGET_MAX_NS);

		if (wanted > budget)
			budget = budget / 2 + wanted / 2;
		store_relaxed(&spin.budget_ns, budget > most ? most : budget);
		note_hit();
	} else if (budget / 2 < BUDGET_LEAST_NS) {
		give_up_for_a_while();
	} else {
		store_relaxed(&spin.budget_ns, budget / 2);
	}
}

static inline bool run(bool (*ready)(void *arg), void *arg, bool relaxes)
{
	uint32_t budget = spin_budget_ns();
	uint64_t handled = counted_now();
	int64_t start, now, spent = 0;
	bool hit = false;

	if (!budget)
		return false;
	start = now = now_ns();
	while (!hit && spent < budget) {
		for (int i = 0; i < CHECKS_PER_CLOCK && !hit; i++) {
			hit = ready(arg);
			if (!hit && !relaxes)
				cpu_relax();
		}
		now = now_ns();
		spent = now - start;
		/* The sleep will find that, too, and end. */
		if (unlikely(counted_now() != handled))
			return hit;
	}
	spin_result(hit, budget, spent > UINT32_MAX ? UINT32_MAX : (uint32_t)spent, now);
	return hit;
}

bool spin_until(bool (*ready)(void *arg), void *arg)
{
	return run(ready, arg, false);
}

bool spin_until_relaxing(bool (*ready)(void *arg), void *arg)
{
	return run(ready, arg, true);
}
