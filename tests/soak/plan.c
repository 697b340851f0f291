/* SPDX-License-Identifier: MIT */
/* All that the seed says of a connection, before it exists. */
#include "soak.h"

enum { MOST_STEPS = 600, ROUND_STEPS = 8 };	/* of a stream, of a question */

uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u + b;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t rng_next(struct rng *r)
{
	r->state += 0x9e3779b97f4a7c15u;
	return mix(r->state, 1);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
	return rng_next(r) % n;
}

uint64_t rng_log(struct rng *r, uint64_t n)
{
	unsigned int bits = 0;

	while (n >> bits > 1)
		bits++;
	return 1 + rng_below(r, n >> rng_below(r, bits + 1));
}

bool rng_one_in(struct rng *r, uint64_t n)
{
	return rng_below(r, n) == 0;
}

/* The last ones are the threaded. */
bool worker_threaded(int worker)
{
	return (uint32_t)worker >= board->nr_workers - board->nr_threaded;
}

static enum event event_choose(struct rng *r, bool threaded)
{
	static const struct {
		int weight;
		bool threads;
	} table[] = {
#define EVENT(name, weight, threads) { weight, threads },
#include "events.def"
#undef EVENT
	};
	int weights[NR_EVENTS], sum = 0, at;

	for (int i = 0; i < NR_EVENTS; i++) {
		weights[i] = (table[i].threads || !threaded) && !(board->without >> i & 1) ? table[i].weight : 0;
		sum += weights[i];
	}
	at = (int)rng_below(r, (uint64_t)sum);
	for (int i = 0;; i++) {
		at -= weights[i];
		if (at < 0)
			return (enum event)i;
	}
}

static uint64_t round_bytes(const struct plan *p, uint32_t conn, int side, uint32_t round)
{
	return 1 + mix(stream_key(conn, side), round) % p->round_len;
}

static void plan_side(struct plan *p, struct rng *r, uint32_t conn, int side)
{
	bool threaded;

	p->total[side] = rng_one_in(r, 8) ? 0 : rng_log(r, board->longest);
	if (p->total[side] > MOST_STEPS * (uint64_t)p->longest[side])
		p->total[side] = MOST_STEPS * (uint64_t)p->longest[side];
	for (uint32_t i = 0; i < p->nr_rounds; i++)
		p->total[side] += round_bytes(p, conn, side, i);
	p->worker[side] = (int)rng_below(r, board->nr_workers);
	threaded = worker_threaded(p->worker[side]);
	p->watch[side] = (enum watch)rng_below(r, NR_WATCHES);
	p->two_threads[side] = rng_one_in(r, 2);
	p->pace[side] = rng_one_in(r, 3) ? (uint32_t)rng_log(r, 8) : 1;
	p->urgent_pos[side] = rng_one_in(r, 25) ? rng_below(r, p->total[side] + 1) : UINT64_MAX;
	p->nr_events[side] = rng_one_in(r, 2) ? 0 : (int)rng_below(r, MAX_EVENTS + 1);
	for (int i = 0, step = 0; i < p->nr_events[side]; i++) {
		step += (int)rng_log(r, 60);
		p->events[side][i].kind = event_choose(r, threaded);
		p->events[side][i].step = (uint32_t)step;
	}
}

void plan_make(struct plan *p, uint32_t conn)
{
	struct rng r = { mix(board->seed, conn) };

	*p = (struct plan){ .nr_rounds = rng_one_in(&r, 3) ? 0 : (uint32_t)rng_log(&r, 100) };
	p->round_len = (uint32_t)rng_log(&r, rng_one_in(&r, 4) ? 100000 : 2000);
	for (int side = 0; side < SIDES; side++) {
		p->longest[side] = (uint32_t)rng_log(&r, LONGEST_STEP);
		if (p->round_len > ROUND_STEPS * p->longest[side])
			p->round_len = ROUND_STEPS * p->longest[side];
	}
	for (int side = 0; side < SIDES; side++)
		plan_side(p, &r, conn, side);
	/* Two that block in one thread each could both wait for the other one to read. */
	if (worker_threaded(p->worker[0]) && worker_threaded(p->worker[1]))
		p->two_threads[0] = p->two_threads[1] = true;
	if (rng_one_in(&r, 3))
		p->late_end[rng_below(&r, SIDES)] = true;
	if (rng_one_in(&r, 8)) {
		p->fate = rng_one_in(&r, 2) ? FATE_RESET : FATE_CLOSED;
		p->fate_side = (int)rng_below(&r, SIDES);
		p->fate_pos = rng_below(&r, p->total[p->fate == FATE_RESET ? p->fate_side : !p->fate_side] + 1);
	}
}

uint64_t plan_limit(const struct plan *p, uint32_t conn, int side, uint64_t rx_pos)
{
	uint64_t asked = 0, answered = 0;

	for (uint32_t i = 0; i < p->nr_rounds; i++) {
		asked += round_bytes(p, conn, 0, i);
		if (side == 1 && rx_pos < asked)
			return answered;
		answered += round_bytes(p, conn, 1, i);
		if (side == 0 && rx_pos < answered)
			return asked;
	}
	return p->total[side];
}
