/* SPDX-License-Identifier: MIT */
/*
 * The ends of a connection whose both lanes are on rings: end of stream, half close, close, death, and writing to who has gone.
 *
 * Stands for: conn_shutdown() and conn_release() of the shim, the end of stream in conn_recv, the PROBE of conn_send and of a sender's wait.
 *
 * Ends 0 and 1. End 0 does what it likes: sends, reads, shuts down, closes, or is killed. End 1 reads until it is told of an end or an error and
 * writes meanwhile. The kernel is what matters of it here: FIN, RST, the frames that lie unread in a receive queue
 * (closing with some there says RST, not FIN), and a closed socket that answers whatever arrives with RST. A PROBE is a frame.
 *
 * End 0 may give up, with its other lane on TCP and bytes there that its program has not read: its kernel can only end the stream, and a word of the lane says that this is none.
 *
 * What must hold: end 1 is told of the end of stream only after the last byte that end 0 published; it gets no reset from an end that closed
 * with everything read, unless it wrote afterwards, and no end from one that gave up; it never hangs, neither reading nor waiting for room, whatever became of end 0.
 */
#define SIZE 1
#ifndef SENDS
#define SENDS 2
#endif

byte tail[2], head[2];		/* by who sends */
byte frames[2];			/* unread in the receive queue of that end */
bool fin[2];			/* that end has said FIN */
bool gone[2];			/* that end's socket is closed */
bool rst[2];			/* that end has been reset */
bool shut[2];

bool wants_room;		/* end 1 is inside a write that found the ring full: more bytes of it would follow */
bool clean;			/* end 0 closed with nothing unread */
byte tail_at_close;
bool gave_up, cut;		/* end 0 has; the word */

inline send_frame(e)
{
	d_step {
		if
		:: gone[1 - e] -> rst[e] = true
		:: else -> frames[1 - e]++
		fi
	}
}

inline kernel_close(e)
{
	d_step {
		if
		:: frames[e] > 0 -> rst[1 - e] = true
		:: else -> fin[e] = true
		fi;
		gone[e] = true
	}
}

inline kernel_reset(e)
{
	d_step { rst[1 - e] = true; gone[e] = true }
}

proctype any()
{
	bool unread;
	do
	:: tail[0] - head[0] < SIZE && tail[0] < SENDS && !shut[0] && !rst[0] -> tail[0]++
	:: head[1] < tail[1] -> head[1]++
	:: frames[0] > 0 -> frames[0]--		/* a call takes the frames that lie there */
	:: !shut[0] -> shut[0] = true; fin[0] = true
	:: break
	od;
	if
	:: kernel_close(0)			/* killed */
	:: tail[0] - head[0] == SIZE && !shut[0] && !rst[0] ->	/* conn_timed_out() */
		gave_up = true;
#ifndef MUT_CUT_UNSAID
#ifndef MUT_CUT_AFTER_END
		cut = true;
#endif
#endif
		d_step { fin[0] = true; gone[0] = true };
#ifdef MUT_CUT_AFTER_END
		cut = true
#endif
	:: skip;
#ifndef MUT_CLOSE_WITHOUT_DRAIN
	   frames[0] = 0;
#endif
	   /* the ring is looked at after the frames: a probe comes before the bytes that it belongs to */
	   unread = head[1] < tail[1];
	   if
#ifndef MUT_CLOSE_UNREAD_SAYS_FIN
	   :: unread -> kernel_reset(0)
#endif
	   :: else ->
		d_step { clean = (head[1] == tail[1]); tail_at_close = tail[1] };
		kernel_close(0)
	   fi;
	   assert(!unread || rst[1])		/* bytes thrown away are never passed off as read */
	fi
}

inline told_reset()
{
	assert(!(clean && tail[1] == tail_at_close && !wants_room));
	over = true
}

inline probe()
{
	if
	:: fin[0] -> send_frame(1)
	:: else
	fi
}

#ifdef MUT_FRAME_WITHOUT_DATA
#define MAY_FRAME_ALONE (!alone)
#else
#define MAY_FRAME_ALONE false
#endif

bool alone;

proctype reader()
{
	byte t;
	bool over, eof, probed;
	do
	:: over -> break
	:: eof && tail[1] == SENDS -> break
	:: !over && !eof ->				/* recv */
		t = tail[0];
		if
		:: head[0] < t -> head[0]++
		:: else ->
			if
			:: fin[0] || rst[1] ->
#ifndef MUT_END_WITHOUT_DRAIN
				t = tail[0];
#endif
				if
				:: head[0] < t
				:: else ->
					assert(head[0] == tail[0]);
					if
					:: rst[1] || cut -> told_reset()
					:: else ->
						assert(!gave_up);
						eof = true
					fi
				fi
			:: else ->
				/* asleep, unless it goes and writes */
				if
				:: head[0] < tail[0] || fin[0] || rst[1]
				:: tail[1] < SENDS
				fi
			fi
		fi
	:: !over && tail[1] < SENDS ->			/* send */
		if
		:: rst[1] -> over = true		/* EPIPE; the bytes in the ring may still be read, which is recv's matter */
		:: !rst[1] && tail[1] - head[1] < SIZE ->
#ifdef MUT_PROBE_AFTER_PUBLISH
			d_step { tail[1]++; wants_room = false };
			probe()
#else
			probe();
			d_step { tail[1]++; wants_room = false }
#endif
		:: !rst[1] && tail[1] - head[1] == SIZE ->
			/* waits for room; who has seen the FIN probes before it sleeps, and again now and then */
			probed = false;
			wants_room = true;
			do
			:: tail[1] - head[1] < SIZE || rst[1] -> break
#ifdef MUT_PROBE_ONCE
			:: fin[0] && !probed -> send_frame(1); probed = true
#else
#ifndef MUT_NO_PROBE
			:: fin[0] && frames[0] == 0 -> send_frame(1)
#endif
#endif
			od
		fi
	:: !over && MAY_FRAME_ALONE -> send_frame(1); alone = true	/* a frame that no program byte follows */
	od
}

init {
	atomic { run any(); run reader() }
}
