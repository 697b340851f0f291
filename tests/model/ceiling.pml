/* SPDX-License-Identifier: MIT */
/*
 * Room for another link, where each of two processes may have one only, and has one that is quiet.
 *
 * Stands for: nego_row_count(), nego_has_met(), introduce() and hello_take() of shim/nego_*.c; make_room() and is_known() of nego.c; ceiling_make_room() and
 * ceiling_help() of ceiling.c; links_take() and links_give().
 *
 * Connection i is accepted by process i and connected by the other. Each quiet one has its other end in the other process, which makes no calls on it: its end is
 * served when that process helps, and only then is it down. A dial happens when all else has come to rest, which is what "later" is there, but for one, which may come at any
 * moment. An acceptor may have to stop between HELLO and VERDICT (fork, pin), once. Neither of the two costs one of its dials.
 *
 * What must hold: no process ever has more links than it may; places are those of the links that there are, once all is at rest; one connection that is busy comes
 * to rings within three dials; of two that cross and dial one after the other, one does; nobody who has met its peer is refused for good.
 */
#ifdef TWO
#define CONNECTIONS 2
#define DIALS 4
#else
#define CONNECTIONS 1
#define DIALS 3
#endif
#define OTHER(p) (1 - (p))

#define NOTHING 0
#define AGREE 1
#define FULL 2

byte places[2] = { 1, 1 };	/* as links_nr() says */
byte up[2] = { 1, 1 };		/* links that there are */
bool quiet[2] = { true, true };	/* the one that was there from the beginning */
bool going[2];			/* ... on its way back */
bool help[2];			/* this process has been told that the other one has no room */
/* By connection */
bool hello[2], closed[2];
byte verdict[2];
bool wait[2];			/* WAIT lies in the link */
bool acceptor_up[2], connector_up[2];
bool acceptor_over[2], connector_over[2];	/* on TCP for good */
byte dialling = 2;		/* whose dial it is; two ends that are not told apart by time would never meet */
byte dials[2];
bool early[2], stopped[2];

/* links_take() */
inline take_place(p, has)
{
	atomic {
		if
		:: places[p] < 1 -> places[p]++; has = true
		:: else -> has = false
		fi
	}
}

inline link_is_up(p)
{
	d_step { up[p]++; assert(up[p] <= 1) }
}

/* ceiling_make_room() */
inline make_room(p)
{
	atomic {
		if
		:: quiet[p] ->
			quiet[p] = false;
			going[p] = true;
#ifdef MUT_FREE_WHEN_DECIDED
			places[p]--
#endif
		:: else
		fi
	}
}

proctype accepts(byte i)
{
	bool has;
	do
	:: atomic {
		dials[i] < DIALS && !acceptor_over[i] && !acceptor_up[i] && dialling == 2 ->
		if
		:: timeout -> dials[i]++
		:: !early[i] && dialling == 2 -> early[i] = true
		fi;
		dialling = i
	   };
		hello[i] = false; verdict[i] = NOTHING; closed[i] = false;
#ifdef MUT_COUNTS_LATE
		has = places[i] < 1;
#else
		if
		:: !has -> take_place(i, has)
		:: else
		fi;
#endif
		if
		:: !has ->
			wait[i] = true;
#ifdef MUT_FULL_IS_FINAL
			acceptor_over[i] = true;
#endif
			make_room(i)
		:: else ->
			hello[i] = true;
			if
			:: verdict[i] == AGREE ->
#ifdef MUT_COUNTS_LATE
				places[i]++;
#endif
				link_is_up(i); acceptor_up[i] = true
			:: verdict[i] == FULL ->
#ifndef MUT_HOLDS_ITS_PLACE
				atomic { places[i]--; has = false };
#endif
				help[i] = true
			/* Stops: fork, pin. */
			:: atomic { !stopped[i] && verdict[i] == NOTHING -> closed[i] = true; stopped[i] = true; dials[i]-- };
#ifndef MUT_KEEPS_ITS_PLACE
				places[i]--;
#endif
				has = false
			fi
		fi;
		dialling = 2
	:: !early[i] -> early[i] = true		/* it does not come */
	:: dials[i] == DIALS || acceptor_over[i] || acceptor_up[i] -> break
	od
}

proctype connects(byte i)
{
	bool has;
	byte me = OTHER(i);
end:	do
	:: wait[i] ->
		wait[i] = false;
#ifdef MUT_WAIT_IS_FINAL
		connector_over[i] = true;
#endif
		help[me] = true
	:: hello[i] && verdict[i] == NOTHING && !connector_up[i] && !closed[i] ->
		take_place(me, has);
		if
		:: connector_over[i] -> verdict[i] = FULL
		:: !connector_over[i] && has ->
			/* The link is there when it is written, or was closed before: as if HELLO had not come */
			atomic {
				if
				:: closed[i] ->
#ifndef MUT_CONNECTOR_KEEPS
					places[me]--
#endif
				:: else -> connector_up[i] = true; up[me]++; assert(up[me] <= 1); verdict[i] = AGREE
				fi
			}
		:: !connector_over[i] && !has -> verdict[i] = FULL; make_room(me)
		fi;
		has = false
	od
}

/* The quiet one of process p, of which the other end is in the other process */
proctype goes_back(byte p)
{
end:	do
#ifdef MUT_NO_HELP
	:: false
#else
	:: atomic { help[OTHER(p)] && going[p] -> going[p] = false };
#endif
		d_step {
			up[p]--;
#ifndef MUT_FREE_WHEN_DECIDED
			places[p]--
#endif
		}
	od
}

init {
	byte i;
	atomic {
		run goes_back(0);
		run goes_back(1);
		for (i : 0 .. CONNECTIONS - 1) {
			run accepts(i);
			run connects(i)
		}
	}
	(timeout && (acceptor_up[0] || acceptor_over[0] || dials[0] == DIALS) && (CONNECTIONS == 1 || acceptor_up[1] || acceptor_over[1] || dials[1] == DIALS));
	assert(!acceptor_over[0] && !connector_over[0] && !acceptor_over[1] && !connector_over[1]);
	assert(acceptor_up[0] || acceptor_up[1]);
	assert(!acceptor_up[0] || connector_up[0]);
	assert(!acceptor_up[1] || connector_up[1]);
	assert(places[0] == up[0] && places[1] == up[1])
}
