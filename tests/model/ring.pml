/* SPDX-License-Identifier: MIT */
/*
 * The byte ring with both its waits: the receiver sleeps for bytes, the sender for room, and is woken at quarters only.
 *
 * Stands for: ring_write(), ring_put(), ring_publish(), ring_read(), ring_get(), ring_consume_to() of ringbuf/ring.h, ring_rx_refresh() and
 * ring_tx_refresh() of ring.c, and both sleep_begin() of wake.c reduced to one sleeper a side (bell.pml has the rest).
 *
 * The ring holds SIZE bytes, positions run freely and are masked only to index; a byte is its number. Writes and reads are cut into
 * any pieces. Stores are buffered as on x86 (TSO, see bell.pml), each side's in one queue, so that a position cannot
 * pass the bytes before it; the fences are between a publication and the look at the other side's wake word.
 *
 * What must hold: every byte arrives once, in order; nothing unread is overwritten; tail - head <= SIZE as each side sees it; nobody sleeps
 * for ever: the run ends with all bytes taken.
 */
#define SIZE 8
#define QUARTER 2
#ifndef BYTES
#define BYTES 14
#endif
#define MOST 3		/* bytes moved by one call */

byte ring[SIZE];
byte tail, head;		/* the shared words */
bool rx_armed, tx_armed;
bool rx_bell, tx_bell;
bool sent_all;

/* Store buffers, one slot a word: stores to one word may merge, and tail never passes bytes, which are stored at once */
byte tail_buffered, head_buffered;
bool rx_armed_buffered, tx_armed_buffered;
#define TX_FLUSH d_step { tail = tail_buffered; if :: tx_armed_buffered -> tx_armed = true; tx_armed_buffered = false :: else fi }
#define RX_FLUSH d_step { head = head_buffered; if :: rx_armed_buffered -> rx_armed = true; rx_armed_buffered = false :: else fi }

active proctype memory()
{
end:
	do
	:: atomic { tail != tail_buffered || tx_armed_buffered -> TX_FLUSH }
	:: atomic { head != head_buffered || rx_armed_buffered -> RX_FLUSH }
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
	tail_buffered = pos;
	PUBLISH_FENCE;
	if
	:: rx_armed -> d_step { tail = tail_buffered; rx_armed = false; rx_bell = true }
	:: else
	fi
}

inline put(pos, to)
{
	do
	:: pos < to ->
		assert(pos - head < SIZE);	/* nothing unread is overwritten: the true head, as memory has it */
		ring[pos % SIZE] = pos;
		pos++
	:: else -> break
	od
}

#ifdef MUT_ROOM_OFF_BY_ONE
#define ROOM_SEEN (SIZE + 1 - (my_tail - head_seen))
#else
#define ROOM_SEEN (SIZE - (my_tail - head_seen))
#endif
#define LOW_WATER (want < QUARTER -> want : QUARTER)

active proctype sender()
{
	byte my_tail, head_seen, want, to, pos;
	do
	:: my_tail == BYTES -> break
	:: else ->
		if
		:: want = 1
		:: want = MOST
		fi;
		if
		:: my_tail + want > BYTES -> want = BYTES - my_tail
		:: else
		fi;
		if
		:: ROOM_SEEN < want -> head_seen = head	/* the peer's line is read only when room seems short */
		:: else
		fi;
		assert(my_tail - head_seen <= SIZE);
		if
		:: ROOM_SEEN > 0 ->
			to = my_tail + (ROOM_SEEN < want -> ROOM_SEEN : want);
			pos = my_tail;
#ifdef MUT_PUBLISH_BEFORE_COPY
			publish(to);
			put(pos, to);
#else
			put(pos, to);
			publish(to);
#endif
			my_tail = to
		:: else ->
			tx_bell = false;
			tx_armed_buffered = true;
			TX_FLUSH;
#ifndef MUT_NO_SECOND_LOOK_FOR_ROOM
			head_seen = head;
#endif
			if
			:: ROOM_SEEN >= LOW_WATER
			:: else -> tx_bell
			fi
		fi
	od;
	sent_all = true
}

#ifdef MUT_QUARTER_BY_LENGTH	/* rings only if one call freed a quarter */
#define CROSSED (to - my_head >= QUARTER)
#else
#define CROSSED (my_head / QUARTER != to / QUARTER)
#endif

inline consume(to)
{
	head_buffered = to;
	if
	:: CROSSED ->
		CONSUME_FENCE;
		if
		:: tx_armed -> d_step { head = head_buffered; tx_armed = false; tx_bell = true }
		:: else
		fi
	:: else
	fi
}

inline get(pos, to)
{
	do
	:: pos < to -> assert(ring[pos % SIZE] == pos); pos++
	:: else -> break
	od
}

active proctype receiver()
{
	byte my_head, tail_seen, to, pos, want;
	do
	:: my_head == BYTES -> break
	:: else ->
		if
		:: tail_seen == my_head -> tail_seen = tail
		:: else
		fi;
		assert(tail_seen - my_head <= SIZE);
		if
		:: tail_seen > my_head ->
			if
			:: want = 1
			:: want = MOST
			fi;
			to = my_head + (tail_seen - my_head < want -> tail_seen - my_head : want);
			pos = my_head;
#ifdef MUT_CONSUME_BEFORE_COPY
			consume(to);
			get(pos, to);
#else
			get(pos, to);
			consume(to);
#endif
			my_head = to
		:: else ->
			rx_bell = false;
			rx_armed_buffered = true;
			RX_FLUSH;
			if
			:: tail != my_head
			:: else -> rx_bell
			fi
		fi
	od;
	assert(my_head == BYTES)
}
