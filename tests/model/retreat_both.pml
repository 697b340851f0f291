/* SPDX-License-Identifier: MIT */
/*
 * Both ends of a connection between hosts go at once: RETREAT.md section 9, "Going", 5. Only one of the two may say GONE, and both ends have to know which.
 *
 * Stands for: shim/retreat_far_go.c (is_my_turn, say, find_place, leave_tx), shim/retreat.c (resend_piece), shim/retreat_go.c (leave_ring_rx), the engine's post_words(), post_gone()
 * and take_gone().
 *
 * End 0 accepted, end 1 connected. Lane e is sent by end e; its bytes are in the other end's ring when this begins, since who goes waits for that first. That an end is about to go is
 * said, and waited for: so it is known to the other's next look from one moment on. A device that has a message says so; an answer that is under way arrives, and what comes to a
 * queue pair that is down is lost, which its sender hears of.
 *
 * -DPATIENCE: who waits for the other one may have enough of it, and stays, or begins anew: the other may be stopped.
 *
 * What must hold: at most one end ever says GONE, and it arrives: so the ends agree, and nobody resets the connection; each lane's bytes arrive once, in order.
 */
#ifndef BYTES
#define BYTES 2
#endif
#define CELLS 8
#define OPEN 3

/* GONE of each end */
bool posted[2], landed[2], acked[2], failed[2];
bool soon[2];			/* it is about to be said: what the other's device has been told */
bool stays[2];
bool down[2];			/* queue pairs */
byte verdict[2] = OPEN;		/* who goes, as each end has it */

/* Of lane e: bytes sent by the ring; read from there; known to the sender to be read; what GONE says; what went over TCP then */
byte tail[2] = BYTES, head[2], credit[2];
byte gone_head[2], gone_left[2];
byte cell[16], wr[2], rd[2];
bool written[2];

inline put(e, b)
{
	d_step { cell[e * CELLS + wr[e]] = b; wr[e]++ }
}

/* A pump takes whatever has come. */
inline look()
{
	d_step { its = landed[other]; about_to = soon[other] }
}

active [2] proctype end()
{
	byte me = _pid, other = 1 - _pid, b;
	bool its, about_to;

	do
	:: head[other] < tail[other] -> head[other]++
	:: break
	od;
	if
	:: credit[me] = head[me]
	:: skip
	fi;
again:
#ifdef MUT_LOOKS_FIRST
	look();
	soon[me] = true;
#else
#ifndef MUT_SILENT
	soon[me] = true;
#endif
	look();
#endif
	if
	:: its -> goto over
	:: !its && !about_to -> goto mine
	:: else
	fi;
	/* is_my_turn(): who connected takes it back; who accepted does not */
#ifndef MUT_NOBODY_YIELDS
	if
	:: me == 1 -> soon[me] = false
	:: else
	fi;
#endif
#ifdef MUT_HASTY
	if
	:: me == 1 -> goto mine
	:: else
	fi;
#endif
	/* await_peer() */
	if
	:: landed[other] -> its = true; goto over
	:: !soon[other] && !landed[other] ->
		if
		:: me == 0 -> goto mine
#ifdef MUT_NOT_ANEW
		:: me == 1 -> goto mine
#else
		:: me == 1 -> goto again
#endif
		fi
#ifdef PATIENCE
	:: soon[me] = false;
		if
		:: goto again
		:: stays[me] = true
		fi;
		(landed[other] || stays[other]);
		its = landed[other];
		if
		:: its -> goto over
		:: else -> goto done
		fi
#endif
	fi;
mine:
	skip;
	d_step {
		assert(!posted[other]);
		gone_head[me] = head[other];
		gone_left[me] = credit[me];
#ifdef MUT_TAKEN_BACK
		soon[me] = false;
#endif
		posted[me] = true
	};
	(acked[me] || failed[me]);
	assert(acked[me]);
over:
	down[me] = true;
	if
	:: its -> verdict[me] = other
	:: else -> verdict[me] = me
	fi;
	/* Who waits for the other's verdict does so in this model only */
	verdict[other] != OPEN;
	assert(verdict[other] == verdict[me]);
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
	:: d_step { posted[e] && !landed[e] && !failed[e] && !down[1 - e] -> landed[e] = true }
	:: d_step { posted[e] && !landed[e] && !failed[e] && down[1 - e] -> failed[e] = true }
	:: landed[e] && !acked[e] -> acked[e] = true
	:: acked[e] || failed[e] || (verdict[e] != OPEN && !posted[e]) || (stays[0] && stays[1]) -> break
	od
}
