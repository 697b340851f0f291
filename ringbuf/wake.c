/* SPDX-License-Identifier: MIT */
/*
 * Both halves of every sleep: the waker's look after a publication and the sleeper's arming before it waits. The two
 * sides of a lane are mirror images, so each function works on a wake word and a set of bells.
 */
#include <errno.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "ringbuf/wake.h"

/* A kernel that is short of memory refuses datagrams for a moment, and so long we try again. */
#define RING_RETRIES 8
#define RETRY_NS 1000000

static uint32_t wake_state(uint32_t word)
{
	return word & WAKE_STATE_MASK;
}

static bool wake_swap(peer_u32 *word, uint32_t *old, uint32_t new)
{
	return compare_exchange(&word->peer_word, old, new);
}

static int ring_patiently(int bell_fd, const struct bell_address *to)
{
	struct timespec delay = { .tv_nsec = RETRY_NS };
	int r = bell_ring(bell_fd, to);

	for (int i = 0; unlikely(r == -ENOBUFS || r == -ENOMEM) && i < RING_RETRIES; i++) {
		sys_nanosleep(&delay);
		r = bell_ring(bell_fd, to);
	}
	return r;
}

/* Whom nobody could ring is still asleep, and the next publication has to see it. */
static void arm_again(peer_u32 *peer_word)
{
	uint32_t word = peer_read_u32(peer_word);

	while (word & WAKE_SLEEPERS_MAX && wake_state(word) == WAKE_AWAKE)
		if (wake_swap(peer_word, &word, word | WAKE_ARMED))
			break;
}

/*
 * The waker. The fence orders our publication before the look; it pairs with the one in arm(). ARMED is taken away by one
 * waker only, who then owes the bell. A peer that writes other states deprives nobody but itself.
 */
static uint32_t wake_sleeper(peer_u32 *peer_word, int bell_fd, const struct bell_address *to, struct ring_counts *counts)
{
	uint32_t word;
	int r;

	fence_full();
	count_add(&counts->fences, 1);
	word = peer_read_u32(peer_word);
	while (wake_state(word) == WAKE_ARMED) {
		if (!wake_swap(peer_word, &word, word & ~WAKE_STATE_MASK))
			continue;
		count_add(&counts->rings, 1);
		r = ring_patiently(bell_fd, to);
		/* Nobody has the port: nobody sleeps there any more. */
		if (likely(!r) || r == -ECONNREFUSED)
			break;
		arm_again(peer_word);
		return (word & WAKE_ATTN_MASK) | RING_UNHEARD;
	}
	return word & WAKE_ATTN_MASK;
}

uint32_t ring_tx_notify_slow(struct ring_tx *tx)
{
	if (unlikely(tx->bells.far))
		return tx->bells.far->published(tx);
	return wake_sleeper(&tx->ctl->rx_state.wake, tx->bells.bell_fd, &tx->bells.peer, &tx->counts);
}

uint32_t ring_rx_notify_slow(struct ring_rx *rx)
{
	if (unlikely(rx->bells.far))
		return rx->bells.far->consumed(rx);
	return wake_sleeper(&rx->ctl->tx_state.wake, rx->bells.bell_fd, &rx->bells.peer, &rx->counts);
}

void ring_rx_arrived(struct ring_rx *rx)
{
	wake_sleeper(&rx->ctl->rx_state.wake, rx->bells.bell_fd, &rx->bells.own, &rx->counts);
}

void ring_tx_arrived(struct ring_tx *tx)
{
	wake_sleeper(&tx->ctl->tx_state.wake, tx->bells.bell_fd, &tx->bells.own, &tx->counts);
}

/*
 * What an earlier sleep left in the bell. Where ARMED stands, because another sleeper has armed since, the ring that ended our
 * sleep may lie there all the same. Rings that nobody takes would fill the bell, and one that finds it full makes no edge for
 * an epoll set.
 */
static unsigned drain_due(struct ring_bells *bells)
{
	if (load_relaxed(&bells->bell_due) == BELL_CLEAR || bells->bell_fd < 0)
		return 0;
	return bell_drain(bells->bell_fd);
}

/*
 * A sleeper that goes to sleep although there is something for others (it waits for more, or for attention only) must leave a ring
 * to them: another thread may have been woken by it and not have looked at the bell yet, and finding it silent it would
 * sleep on. The one that leaves it does not sleep until the others have taken it up.
 */
static unsigned drain_unless_others(struct ring_bells *bells, bool something)
{
	if (something && load_acquire(&bells->nr_threads))
		return 0;
	return drain_due(bells);
}

/*
 * Counts us as a sleeper and arms. Afterwards every publication that the caller does not see will be followed by a
 * look that sees ARMED: by the fence here and the waker's, or by our membarrier where the waker was told to leave its own out.
 * True if it was: whoever armed behind us before the membarrier was through has looked too early, and relies on us.
 */
static bool arm(peer_u32 *own_word, struct ring_bells *bells, struct ring_counts *counts)
{
	uint32_t old = peer_read_u32(own_word);
	uint32_t new;

	do {
		new = (old & ~WAKE_STATE_MASK) | WAKE_ARMED;
		if ((new & WAKE_SLEEPERS_MAX) != WAKE_SLEEPERS_MAX)
			new += WAKE_SLEEPER;
	} while (!wake_swap(own_word, &old, new));
	store_relaxed(&bells->bell_due, BELL_MAYBE);
	if (wake_state(old) == WAKE_POLLING) {
		count_add(&counts->heavy, 1);
		if (barrier_heavy() < 0) {
			/* Forbidden since we last asked. A store leaves the sender's CPU long before this ends. */
			struct timespec delay = { .tv_nsec = 1000000 };

			barrier_disable();
			sys_nanosleep(&delay);
		}
	}
	fence_full();
	return wake_state(old) == WAKE_POLLING;
}

/* Counts us out, and takes the arming back if nobody else relies on it. Was ARMED still standing then? */
static bool disarm(peer_u32 *own_word, bool *others)
{
	uint32_t old = peer_read_u32(own_word);
	uint32_t new;

	do {
		new = old & WAKE_SLEEPERS_MAX ? old - WAKE_SLEEPER : old;
		if (!(new & WAKE_SLEEPERS_MAX) && wake_state(new) == WAKE_ARMED)
			new &= ~WAKE_STATE_MASK;
	} while (!wake_swap(own_word, &old, new));
	*others = new & WAKE_SLEEPERS_MAX;
	return wake_state(old) == WAKE_ARMED;
}

/*
 * Something was there after arming. Rings that we drained may have been meant for another sleeper, who would find the bell
 * silent, and so would one who armed while we left POLLING: `owed` passes them on. No bell is due if our arming was
 * never taken and none was still on its way before it.
 */
static void arm_found(peer_u32 *own_word, struct ring_bells *bells, bool owed, bool clear)
{
	bool others, stood = disarm(own_word, &others);

	if (stood && clear && !others)
		store_relaxed(&bells->bell_due, BELL_CLEAR);
	if (owed && others)
		bell_ring(bells->bell_fd, &bells->own);
}

static void sleep_end(peer_u32 *own_word, struct ring_bells *bells, bool rung)
{
	bool others;

	if (rung)
		store_relaxed(&bells->bell_due, BELL_MAYBE);
	disarm(own_word, &others);
}

bool ring_rx_sleep_begin(struct ring_rx *rx)
{
	return ring_rx_sleep_begin_past(rx, load_unlocked(&rx->head_pos));
}

bool ring_rx_sleep_begin_past(struct ring_rx *rx, uint64_t tail_pos)
{
	peer_u32 *word = &rx->ctl->rx_state.wake;
	bool was_clear = load_relaxed(&rx->bells.bell_due) == BELL_CLEAR;
	bool unread = ring_rx_unread(rx) != 0;
	unsigned drained = drain_unless_others(&rx->bells, unread);
	bool was_polling;

	store_relaxed(&rx->streak, 0);
	was_polling = arm(word, &rx->bells, &rx->counts);
	if (ring_rx_published(rx) != (tail_pos & TAIL_POS_MASK) ||
	    peer_read_u32(&rx->ctl->tx_state.wake) & WAKE_ATTN_MASK) {
		arm_found(word, &rx->bells, drained || was_polling, was_clear || drained);
		return true;
	}
	count_add(&rx->counts.sleeps, 1);
	return false;
}

void ring_rx_sleep_end(struct ring_rx *rx, bool rung)
{
	sleep_end(&rx->ctl->rx_state.wake, &rx->bells, rung);
}

bool ring_tx_sleep_begin(struct ring_tx *tx, size_t want)
{
	peer_u32 *word = &tx->ctl->tx_state.wake;
	bool was_clear = load_relaxed(&tx->bells.bell_due) == BELL_CLEAR;
	unsigned drained = drain_due(&tx->bells);

	arm(word, &tx->bells, &tx->counts);
	/* A lie is "something is there", and ring_tx_room() will tell. */
	if (ring_tx_room_now(tx) >= ring_tx_low_water(tx, want) ||
	    peer_read_u32(&tx->ctl->rx_state.wake) & WAKE_ATTN_MASK) {
		arm_found(word, &tx->bells, drained > 0, was_clear || drained);
		return true;
	}
	count_add(&tx->counts.sleeps, 1);
	return false;
}

bool ring_tx_sleep_begin_words(struct ring_tx *tx)
{
	peer_u32 *word = &tx->ctl->tx_state.wake;
	bool was_clear = load_relaxed(&tx->bells.bell_due) == BELL_CLEAR;
	bool room = ring_tx_room_now(tx) >= ring_tx_low_water(tx, SIZE_MAX);
	unsigned drained = drain_unless_others(&tx->bells, room);

	arm(word, &tx->bells, &tx->counts);
	if (peer_read_u32(&tx->ctl->rx_state.wake) & WAKE_ATTN_MASK) {
		arm_found(word, &tx->bells, drained > 0, was_clear || drained);
		return true;
	}
	count_add(&tx->counts.sleeps, 1);
	return false;
}

void ring_tx_sleep_end(struct ring_tx *tx, bool rung)
{
	sleep_end(&tx->ctl->tx_state.wake, &tx->bells, rung);
}

/* Only from AWAKE with nobody asleep: whoever sleeps needs ARMED, or is about to be woken. */
void ring_rx_enter_polling(struct ring_rx *rx)
{
	peer_u32 *word = &rx->ctl->rx_state.wake;
	uint32_t old = peer_read_u32(word);

	/* What plays a far peer's part is never told to leave its fence out. */
	if (rx->bells.far || !barrier_available())
		return;
	while (!(old & (WAKE_STATE_MASK | WAKE_SLEEPERS_MAX)))
		if (wake_swap(word, &old, old | WAKE_POLLING))
			return;
	store_relaxed(&rx->streak, 0);
}

void ring_rx_leave_polling(struct ring_rx *rx)
{
	peer_u32 *word = &rx->ctl->rx_state.wake;
	uint32_t old = peer_read_u32(word);

	while (wake_state(old) == WAKE_POLLING) {
		if (!wake_swap(word, &old, old & ~WAKE_STATE_MASK))
			continue;
		count_add(&rx->counts.heavy, 1);
		barrier_heavy();
		/* Who armed meanwhile looked before the membarrier was through. */
		if (peer_read_u32(word) & WAKE_SLEEPERS_MAX)
			bell_ring(rx->bells.bell_fd, &rx->bells.own);
		break;
	}
	store_relaxed(&rx->streak, 0);
}

void ring_tx_raise_attention(struct ring_tx *tx, uint32_t flags)
{
	fetch_or(&tx->ctl->tx_state.wake.peer_word, flags & WAKE_ATTN_MASK);
	ring_tx_notify_slow(tx);
}

void ring_rx_raise_attention(struct ring_rx *rx, uint32_t flags)
{
	fetch_or(&rx->ctl->rx_state.wake.peer_word, flags & WAKE_ATTN_MASK);
	ring_rx_notify_slow(rx);
}

/* Sleepers whom nobody has taken ARMED away from have missed nothing unless something is pending. */
static void stir(const peer_u32 *word, bool pending, int bell_fd, const struct bell_address *to)
{
	uint32_t now;

	fence_full();
	now = peer_read_u32(word);
	if (now & WAKE_SLEEPERS_MAX && (pending || wake_state(now) != WAKE_ARMED))
		bell_ring(bell_fd, to);
}

void ring_tx_stir(struct ring_tx *tx)
{
	bool room = ring_tx_room_now(tx) >= ring_tx_low_water(tx, SIZE_MAX);
	bool untaken = load_unlocked(&tx->tail_pos) != peer_read_u64(&tx->ctl->rx.head_pos);

	stir(&tx->ctl->tx_state.wake, room || ring_tx_attention(tx), tx->bells.bell_fd, &tx->bells.own);
	stir(&tx->ctl->rx_state.wake, untaken, tx->bells.bell_fd, &tx->bells.peer);
}

void ring_rx_stir(struct ring_rx *rx)
{
	stir(&rx->ctl->rx_state.wake, ring_rx_unread(rx) || ring_rx_attention(rx), rx->bells.bell_fd, &rx->bells.own);
	/* Whether a crossing went unnoticed cannot be seen. */
	stir(&rx->ctl->tx_state.wake, true, rx->bells.bell_fd, &rx->bells.peer);
}

static uint32_t take_attention(peer_u32 *peer_word)
{
	if (likely(!(peer_read_u32(peer_word) & WAKE_ATTN_MASK)))
		return 0;
	return fetch_and(&peer_word->peer_word, ~WAKE_ATTN_MASK) & WAKE_ATTN_MASK;
}

uint32_t ring_tx_own_attention(struct ring_tx *tx)
{
	return take_attention(&tx->ctl->tx_state.wake);
}

uint32_t ring_rx_own_attention(struct ring_rx *rx)
{
	return take_attention(&rx->ctl->rx_state.wake);
}

uint32_t ring_tx_take_attention(struct ring_tx *tx)
{
	return take_attention(&tx->ctl->rx_state.wake);
}

uint32_t ring_rx_take_attention(struct ring_rx *rx)
{
	return take_attention(&rx->ctl->tx_state.wake);
}

uint32_t ring_tx_attention(const struct ring_tx *tx)
{
	return peer_read_u32(&tx->ctl->rx_state.wake) & WAKE_ATTN_MASK;
}

uint32_t ring_rx_attention(const struct ring_rx *rx)
{
	return peer_read_u32(&rx->ctl->tx_state.wake) & WAKE_ATTN_MASK;
}

void ring_tx_clear_attention(struct ring_tx *tx, uint32_t flags)
{
	fetch_and(&tx->ctl->rx_state.wake.peer_word, ~(flags & WAKE_ATTN_MASK));
}

void ring_tx_keep_attention(struct ring_tx *tx, uint32_t flags)
{
	fetch_or(&tx->ctl->rx_state.wake.peer_word, flags & WAKE_ATTN_MASK);
}

void ring_rx_clear_attention(struct ring_rx *rx, uint32_t flags)
{
	fetch_and(&rx->ctl->tx_state.wake.peer_word, ~(flags & WAKE_ATTN_MASK));
}
