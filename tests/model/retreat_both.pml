/* SPDX-License-Identifier: MIT */
/*
 * Both ends of a connection between hosts go at once: RETREAT.md section 9, "Going", 5. Each says GONE, and only one of the two messages may count, whatever has become of
 * the other: both ends have to know which.
 *
 * Stands for: shim/retreat_far_go.c (say, find_place, leave_tx), shim/retreat.c (resend_piece), shim/retreat_go.c (leave_ring_rx), the engine's post_gone() and take_gone().
 *
 * End 0 accepted, end 1 connected. Lane e is sent by end e; its bytes are in the other end's ring when this begins, since who goes waits for that first. A device that has
 * a message says so, behind what it was to send by then; an answer that is under way arrives, and what comes to a queue pair that is down is lost, which its sender hears of.
 *
 * What must hold: the ends agree; nobody resets the connection but in the one step in which that cannot be helped; each lane's bytes arrive once, in order.
 */
#ifndef BYTES
#define BYTES 2
#endif
#define CELLS 8
#define RESET 2
#define OPEN 3

/* GONE of each end */
bool posted[2], landed[2], acked[2], failed[2];
bool behind[2];			/* it came to a device that had one to send, which its answer does not overtake */
bool down[2];			/* queue pairs */
byte verdict[2] = OPEN;		/* whose message counts, as each end has it */
bool late;			/* the other's had landed when the accepting end posted its own, after its last look */

/* Of lane e: bytes sent by the ring; read from there; known to the sender to be read; what GONE says; what went over TCP then */
byte tail[2] = BYTES, head[2], credit[2];
byte gone_head[2], gone_left[2];
byte cell[16], wr[2], rd[2];
bool written[2];

inline put(e, b)
{
	d_step { cell[e * CELLS + wr[e]] = b; wr[e]++ }
}

active [2] proctype end()
{
	byte me = _pid, other = 1 - _pid, b;
	bool its;

	do
	:: head[other] < tail[other] -> head[other]++
	:: break
	od;
	if
	:: credit[me] = head[me]
	:: skip
	fi;
	/* say(): a look, then it is said that this end goes; whose turn it is at the device looks once more */
	its = landed[other];
	if
	:: its -> goto over
	:: else
	fi;
#ifdef MUT_IGNORES_EARLY
	its = landed[other] && me == 1;
#else
	its = landed[other];
#endif
	if
	:: its -> goto over
	:: else
	fi;
	d_step {
		gone_head[me] = head[other];
		gone_left[me] = credit[me];
		posted[me] = true;
#ifndef MUT_IGNORES_EARLY
		late = late || (me == 0 && landed[other])
#endif
	};
#ifdef MUT_BOTH_YIELD
	(acked[me] || failed[me] || landed[other]);
	its = landed[other];
#else
	(acked[me] || failed[me] || (me == 1 && landed[other]));
#ifndef MUT_NOBODY_YIELDS
	its = me == 1 && landed[other];
#endif
#endif
over:
	down[me] = true;
	/* The queue to its end: the connecting end still hears of the other one */
#ifndef MUT_UNSETTLED
#ifndef MUT_NOBODY_YIELDS
	its = its || (me == 1 && landed[other]);
#endif
#endif
	if
	:: its -> verdict[me] = other
	:: !its && acked[me] -> verdict[me] = me
	:: !its && !acked[me] ->
		assert(late);
		verdict[me] = RESET;
		goto done
	fi;
	/* Who waits for the other's verdict does so in this model only */
	verdict[other] != OPEN;
	if
	:: verdict[other] == RESET -> goto done
	:: else -> assert(verdict[other] == verdict[me])
	fi;
	/* What the other end may not have read, then one byte more: from where this end said, or from where the other one says that it stood */
	if
	:: verdict[me] == me ->
		b = gone_left[me];
		/* A credit that was under way */
		if
		:: credit[me] = head[me]
		:: skip
		fi;
#ifdef MUT_BELIEVES_CREDIT
		if
		:: credit[me] == tail[me] -> b = tail[me]
		:: else
		fi
#endif
	:: else -> b = gone_head[other]
	fi;
	do
	:: b <= tail[me] -> put(me, b); b++
	:: else -> break
	od;
	written[me] = true;
	/* The one that is not heard has its ring still, reads some of it perhaps, and takes out of the socket what its successor would have twice */
	if
	:: verdict[me] == other ->
		do
		:: head[other] < tail[other] -> head[other]++
		:: break
		od;
		written[other];
#ifdef MUT_NOT_DISCARDED
		skip
#else
		rd[other] = head[other] - gone_left[other]
#endif
	:: else
	fi;
	/* The successor */
	b = head[other];
	do
	:: rd[other] < wr[other] -> assert(cell[other * CELLS + rd[other]] == b); rd[other]++; b++
	:: written[other] && rd[other] == wr[other] -> break
	od;
	assert(b == BYTES + 1);
done:
	skip
}

active [2] proctype device()
{
	byte e = _pid - 2;

	do
	:: d_step { posted[e] && !landed[e] && !failed[e] && !down[1 - e] -> landed[e] = true; behind[e] = posted[1 - e] }
	:: d_step { posted[e] && !landed[e] && !failed[e] && down[1 - e] -> failed[e] = true }
	:: landed[e] && !acked[e] && (!behind[e] || landed[1 - e] || failed[1 - e]) -> acked[e] = true
	:: acked[e] || failed[e] || (verdict[e] != OPEN && !posted[e]) -> break
	od
}
