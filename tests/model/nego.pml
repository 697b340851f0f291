/* SPDX-License-Identifier: MIT */
/*
 * The rendezvous: the connector offers, the acceptor dials, HELLO, VERDICT, both link or both stay on TCP.
 *
 * Stands for: nego_offer_step(), accept_some(), hear(), hello_take() of shim/nego_offer.c; nego_dial_step(), dial(), introduce(), hear_verdict()
 * and redial() of nego_dial.c; nego_poke() of nego.c, its giving up and its pauses while another process holds the connection.
 *
 * Each dial is a link with its own segment, both named by the number of the dial. Strangers of the right uid connect to the offer, say nothing,
 * or send rubbish. Either end may give up at any moment (closed, pinned, out of steps), and the acceptor may fork for a while.
 *
 * What must hold: an acceptor that has linked shares the segment with the connector, which has linked too (the reverse need not hold: a
 * VERDICT that nobody read leaves the connector announcing into a segment that nobody acknowledges); if nobody gives up,
 * refuses or runs out of tries, both link in spite of the strangers; nobody blocks.
 */
#define DIALS 3
#define STRANGERS 2
#define STRANGER (DIALS + 1)
#define SILENT 1	/* links that may be open without having said anything */

#define IDLE 0
#define OFFERED 1
#define DIALLED 1
#define LINKED 2
#define OVER 3

#define NOTHING 0
#define AGREE 1
#define NOT_NOW 2
#define REFUSE 3

chan backlog = [2] of { byte };	/* links that nobody has accepted yet */
byte connector, acceptor;
byte c_segment, a_segment;
bool listening;
/* by the number of the dial */
bool hello[STRANGER + 1];
byte verdict[STRANGER + 1];
bool a_closed[STRANGER + 1];	/* the dialling end has closed the link */
bool c_closed[STRANGER + 1];	/* the accepting end has */
byte dial;
byte nr_strangers, nr_silent;
bool shared;		/* a second process holds the acceptor's connection */
bool gave_up;

inline stop_listening()
{
	d_step {
		listening = false;
		/* links that wait in the backlog are closed with the listener */
		do
		:: nempty(backlog) -> backlog ? l; c_closed[l] = true
		:: empty(backlog) -> break
		od;
		l = 0
	}
}

inline take_hello(l)
{
	if
	:: !a_closed[l] ->
		/* the VERDICT is written while the acceptor still has its end open, whatever it does next */
		verdict[l] = AGREE;
		c_segment = l;
		connector = LINKED;
		c_closed[l] = true
	:: a_closed[l] -> c_closed[l] = true		/* as if it had not come */
#ifdef MAY_REFUSE
	:: verdict[l] = NOT_NOW; c_closed[l] = true
	:: verdict[l] = REFUSE; c_closed[l] = true; gave_up = true; connector = OVER
#endif
	fi
}

active proctype connects()
{
	byte l, silent;
	do
	:: connector == IDLE -> listening = true; connector = OFFERED
	:: connector == OFFERED && nempty(backlog) ->
		backlog ? l;
		if
		:: l == STRANGER && nr_silent < STRANGERS ->
			/* silent: it is kept for a while, and the oldest is dropped for the next */
#ifdef MUT_WAITS_FOR_A_STRANGER
			hello[STRANGER]
#else
			nr_silent++;
			silent = l
#endif
		:: l == STRANGER -> skip		/* rubbish: dropped */
		:: l < STRANGER -> take_hello(l)
		fi;
		l = 0
	:: connector >= LINKED -> break
#ifdef MAY_GIVE_UP
	:: connector == OFFERED -> gave_up = true; connector = OVER
#endif
	od;
	stop_listening()
}

active proctype dials()
{
	byte l, tries;
	do
	:: acceptor == IDLE && !shared ->
		if
		:: atomic { listening && nfull(backlog) && dial < DIALS -> dial++; backlog ! dial }
		   hello[dial] = true;
#ifdef MUT_LINKS_WITHOUT_VERDICT
		   a_segment = dial; acceptor = LINKED
#else
		   acceptor = DIALLED
#endif
		:: dial == DIALS -> gave_up = true; acceptor = OVER
		:: connector == OVER -> acceptor = OVER		/* refused again and again */
		:: connector == LINKED -> gave_up = true; acceptor = OVER
		fi
	:: acceptor == DIALLED && !shared && (verdict[dial] != NOTHING || c_closed[dial]) ->
		if
		:: verdict[dial] == AGREE ->
#ifdef MUT_FIRST_SEGMENT
			a_segment = 1;
#else
			a_segment = dial;
#endif
			acceptor = LINKED
		:: verdict[dial] == REFUSE -> acceptor = OVER
		:: verdict[dial] != AGREE && verdict[dial] != REFUSE ->
			a_closed[dial] = true;
			acceptor = IDLE
		fi
	:: !shared && tries == 0 && acceptor < LINKED -> shared = true; tries++
	:: shared -> shared = false
	:: acceptor >= LINKED -> break
#ifdef MAY_GIVE_UP
	:: acceptor == DIALLED -> a_closed[dial] = true; gave_up = true; acceptor = OVER
#endif
	od;
	a_closed[dial] = true
}

active proctype strangers()
{
	do
	:: atomic { nr_strangers < STRANGERS && listening && nfull(backlog) -> nr_strangers++; backlog ! STRANGER }
	:: break
	od
}

/* Both are done: what did it come to? */
active proctype judge()
{
	connector >= LINKED && acceptor >= LINKED;
	assert(acceptor != LINKED || connector == LINKED && a_segment == c_segment);
	assert(gave_up || connector == LINKED && acceptor == LINKED)
}
