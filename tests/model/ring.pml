/* SPDX-License-Identifier: MIT */
/*
 * A lane's two rings with both waits: the receiver sleeps for bytes, the sender for room, and is woken at quarters only; a sender that
 * finds the small ring full may move to the overflow ring, and moves back when it finds everything taken.
 *
 * Stands for: ring_write(), ring_put(), ring_publish(), ring_read(), ring_get(), ring_consume_to() of ringbuf/ring.h, ring_rx_refresh() and
 * ring_tx_refresh() of ring.c, all of overflow.c, ring_tx_recover() at any moment, and both sleep_begin() of wake.c reduced to one
 * sleeper a side (bell.pml has the rest).
 *
 * The rings hold SIZE and OVER bytes, positions run freely and are masked only to index; a byte is its number. Writes and reads are cut into
 * any pieces. Stores are buffered as on x86 (TSO, see bell.pml), each side's in one queue, so that a position cannot
 * pass the bytes before it; the fences are between a publication and the look at the other side's wake word.
 *
 * With -DTRIM a receiver that has found nothing may remove the pages of the overflow ring: what lies there is gone.
 *
 * What must hold: every byte arrives once, in order; nothing unread is overwritten; what each side learns of the other is within what it
 * checks, so no honest peer is called a liar; nobody sleeps for ever: the run ends with all bytes taken.
 */
/* The parts at which room is told are halves here, so that rings of few bytes are enough; quarters come oftener. */
#define SIZE 2
#define QUARTER 1
#ifndef OVER
#define OVER 4
#endif
#define OVER_QUARTER (OVER / 2)
#ifndef BYTES
#define BYTES 8
#endif
#define MOST 3		/* bytes moved by one call */
#define MOVE 64		/* a published tail is a position below the number of moves modulo 4 */

byte ring[SIZE], over[OVER];
byte tail, moved_at, head;		/* the shared words */
byte claimed;
bool trimming;
bool rx_armed, tx_armed;
bool rx_bell, tx_bell;

/*
 * Store buffers, one slot a word: stores to one word may merge, and tail never passes bytes and the place of a move, which are stored
 * at once.
 */
byte tail_buffered, head_buffered, claimed_buffered;
bool rx_armed_buffered, tx_armed_buffered, trimming_buffered;
#define TX_FLUSH d_step { tail = tail_buffered; claimed = claimed_buffered; if :: tx_armed_buffered -> tx_armed = true; tx_armed_buffered = false :: else fi }
#define RX_FLUSH d_step { head = head_buffered; trimming = trimming_buffered; if :: rx_armed_buffered -> rx_armed = true; rx_armed_buffered = false :: else fi }

active proctype memory()
{
end:
	do
	:: atomic { tail != tail_buffered || claimed != claimed_buffered || tx_armed_buffered -> TX_FLUSH }
	:: atomic { head != head_buffered || trimming != trimming_buffered || rx_armed_buffered -> RX_FLUSH }
	od
}

#ifdef MUT_NO_FENCE_AFTER_PUBLISH
#define PUBLISH_FENCE skip
#else
#define PUBLISH_FENCE TX_FLUSH
#endif
#ifdef MUT_NO_FENCE_AFTER_CONSUME
#define CONSUME_FENCE skip
#else
#define CONSUME_FENCE RX_FLUSH
#endif

inline publish(pos)
{
	tail_buffered = moves * MOVE + pos;
#ifdef MUT_PLACE_AFTER_TAIL
	moved_at = at;
#endif
	PUBLISH_FENCE;
	if
	:: rx_armed -> d_step { tail = tail_buffered; rx_armed = false; rx_bell = true }
	:: else
	fi
}

#define LARGE (moves % 2 == 1)

/* A copy is one step: who is too early, to read or to write, finds it not done or done, and either shows. */
inline put(pos, to)
{
	d_step {
	do
	:: pos < to ->
		/* Nothing unread is overwritten: the true head, as memory has it. */
		if
		:: LARGE -> assert(pos - (head > at -> head : at) < OVER); over[pos % OVER] = pos
		:: else -> assert(pos - head < SIZE); ring[pos % SIZE] = pos
		fi;
		pos++
	:: else -> break
	od
	}
}

inline move()
{
	/* On the way back the place means nothing. */
	at = (LARGE -> 0 : my_tail);
#ifndef MUT_PLACE_AFTER_TAIL
	moved_at = at;
#endif
	moves = (moves + 1) % 4
}

#ifdef MUT_NO_FENCE_AFTER_CLAIM
#define CLAIM_FENCE skip
#else
#define CLAIM_FENCE TX_FLUSH
#endif
#ifdef MUT_NO_FENCE_BEFORE_TRIM
#define TRIM_FENCE skip
#else
#define TRIM_FENCE RX_FLUSH
#endif

/* Before bytes go into the overflow ring: `to` is where they end, or where they begin if it is being trimmed. */
inline claim()
{
#ifndef TRIM
	skip
#else
	if
	:: LARGE && to > my_tail ->
#ifndef MUT_NO_CLAIM
		claimed_buffered = to;
#endif
		CLAIM_FENCE;
		if
		:: trimming -> claimed_buffered = my_tail; to = my_tail
		:: else
		fi
	:: else
	fi
#endif
}

/* Everything that it has found is taken. */
inline trim()
{
	trimming_buffered = true;
	TRIM_FENCE;
	if
#ifdef MUT_TRIM_UNASKED
	:: true ->
#else
	:: claimed <= my_head ->
#endif
		d_step {
		for (pos : 0 .. OVER - 1) { over[pos] = 0 }
		pos = 0
		}
	:: else
	fi;
	trimming_buffered = false;
#ifndef MUT_TRIM_SILENT
	RX_FLUSH;
	if
	:: tx_armed -> d_step { tx_armed = false; tx_bell = true }
	:: else
	fi
#endif
}

#ifdef MUT_ROOM_OFF_BY_ONE
#define SPARE 1
#else
#define SPARE 0
#endif
#define FREE_FROM (LARGE && head_seen < at -> at : head_seen)
#define ROOM_SEEN ((LARGE -> OVER : SIZE) + SPARE - (my_tail - FREE_FROM))
#define LARGEST_WAIT (LARGE -> OVER_QUARTER : QUARTER)
#define LOW_WATER (want < LARGEST_WAIT -> want : LARGEST_WAIT)
#ifdef MUT_BACK_BEFORE_TAKEN	/* as soon as the bytes of the small ring are taken */
#define MAY_GO_BACK (head_seen >= at)
#else
#define MAY_GO_BACK (head_seen == my_tail)
#endif

active proctype sender()
{
	byte my_tail, head_seen, want, to, pos, moves, at;
	bool recovered;
	do
	:: my_tail == BYTES -> break
	:: !recovered && my_tail != BYTES ->
		/* A holder of the lane has died, and who takes over publishes what was true. */
		recovered = true;
		publish(my_tail)
	:: my_tail != BYTES ->
		atomic {
			if
			:: want = 1
			:: want = MOST
			fi;
			if
			:: my_tail + want > BYTES -> want = BYTES - my_tail
			:: else
			fi;
			if
			:: ROOM_SEEN < want || LARGE ->	/* the peer's line is read only when room seems short, or there is something to go back for */
				head_seen = head;
				if
				:: LARGE && MAY_GO_BACK -> move()
				:: else
				fi
			:: else
			fi;
			assert(ROOM_SEEN >= 0);
			to = my_tail + (ROOM_SEEN < want -> ROOM_SEEN : want);
			pos = my_tail
		}
		claim();
		if
		:: to > my_tail ->
#ifdef MUT_PUBLISH_BEFORE_COPY
			publish(to);
			put(pos, to);
#else
			put(pos, to);
			publish(to);
#endif
			my_tail = to
		:: atomic { ROOM_SEEN <= 0 && !LARGE && !trimming -> move() }
#ifdef MUT_MOVE_FROM_EMPTY	/* and back, without a byte between */
		:: atomic { !LARGE && my_tail == head_seen -> move() }
#endif
		:: to == my_tail ->	/* or waits, in either ring */
			tx_bell = false;
			tx_armed_buffered = true;
			TX_FLUSH;
#ifndef MUT_NO_SECOND_LOOK_FOR_ROOM
			head_seen = head;
#endif
			if
			:: ROOM_SEEN >= LOW_WATER && !(LARGE && trimming)
			:: else -> tx_bell
			fi
		fi;
		d_step { want = 0; to = 0; pos = 0 }
	od
}

/* The quarter that the receiver goes by: of the small ring until it has noticed that the bytes come from the other one. */
#ifdef MUT_QUARTER_OF_THE_LARGE
#define CROSSING OVER_QUARTER
#else
#define CROSSING (large -> OVER_QUARTER : QUARTER)
#endif
#ifdef MUT_QUARTER_BY_LENGTH	/* rings only if one call freed a quarter */
#define CROSSED (to - my_head >= CROSSING)
#else
#define CROSSED (my_head / CROSSING != to / CROSSING)
#endif
#define PLACE large = (moves % 2 == 1 && head_buffered >= at)

inline consume(to)
{
	head_buffered = to;
	if
	:: CROSSED ->
		PLACE;
		CONSUME_FENCE;
		if
		:: tx_armed -> d_step { head = head_buffered; tx_armed = false; tx_bell = true }
		:: else
		fi
	:: else
	fi
}

/* What was taken is wiped out: nothing may depend on it any more. */
inline get(pos, to)
{
	d_step {
	do
	:: pos < to ->
		if
		:: moves % 2 == 1 && pos >= at -> assert(over[pos % OVER] == pos); over[pos % OVER] = 0
		:: else -> assert(ring[pos % SIZE] == pos); ring[pos % SIZE] = 0
		fi;
		pos++
	:: else -> break
	od
	}
}

#ifdef MUT_ONE_BIT	/* tells the rings apart, not one stay in the overflow ring from the next */
#define SAME_MOVE ((word / MOVE) % 2 == moves % 2)
#else
#define SAME_MOVE (word / MOVE == moves)
#endif
#ifdef MUT_MOVE_WITHOUT_BYTES	/* learns of a move from a tail that has nothing new before it */
#define NOTHING_NEW (word == moves * MOVE + tail_seen)
#else
#define NOTHING_NEW (word % MOVE == tail_seen)
#endif

inline refresh()
{
	word = tail;
	if
	:: NOTHING_NEW
	:: else ->
		atomic {
			if
			:: SAME_MOVE
			:: !(SAME_MOVE) && (word / MOVE) % 2 == 1 ->
				assert(moves % 2 == 0 || tail_seen == my_head);
				at = moved_at;
				assert(at >= tail_seen && at - my_head <= SIZE)
			:: else -> assert(tail_seen == my_head); at = 0
			fi;
			moves = word / MOVE;
			tail_seen = word % MOVE;
			PLACE;
			assert(moves % 2 == 0 || tail_seen >= at);
			assert(tail_seen - (moves % 2 == 1 && my_head < at -> at : my_head) <= (moves % 2 == 1 -> OVER : SIZE))
		}
	fi;
	word = 0
}

active proctype receiver()
{
	byte my_head, tail_seen, to, pos, want, moves, at, word;
	bool large;
	do
	:: my_head == BYTES -> break
	:: else ->
		if
		:: refresh()
		:: tail_seen > my_head
		fi;
		if
		:: tail_seen > my_head ->
			atomic {
				if
				:: want = 1
				:: want = MOST
				fi;
				to = my_head + (tail_seen - my_head < want -> tail_seen - my_head : want);
				pos = my_head;
				want = 0
			}
#ifdef MUT_CONSUME_BEFORE_COPY
			consume(to);
			get(pos, to);
#else
			get(pos, to);
			consume(to);
#endif
			d_step { my_head = to; to = 0; pos = 0 }
		:: else ->
#ifdef TRIM
			if
			:: trim()
			:: skip
			fi;
#endif
			rx_bell = false;
			rx_armed_buffered = true;
			RX_FLUSH;
			if
			:: tail % MOVE != my_head
			:: else -> rx_bell
			fi
		fi
	od;
	assert(my_head == BYTES)
}
