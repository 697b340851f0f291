/* SPDX-License-Identifier: MIT */
/*
 * What comes in: completions, and what a peer says in them. Each value is bounded before it is believed (VERBS.md); a lie ends the link with -EPROTO and
 * leaves what came before it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

/* The fd does not block. At most one event lies there, since the queue is armed again only after it was taken. */
static void drain_channel(struct verbs_link *v)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(v->channel, &cq, &context))
		return;
	ibv_ack_cq_events(v->cq, 1);
	count_add(&v->counts.events, 1);
	v->armed = false;
}

void verbs_drain(struct verbs_link *v)
{
	struct epoll_event ready[2];
	int nr = (int)sys_call6(SYS_epoll_pwait, v->wait_fd, (long)ready, 2, 0, 0, 8);

	for (int i = 0; i < nr; i++) {
		if (ready[i].data.u32 == WAIT_EVENTS)
			verbs_look_at_events(v);
		else
			drain_channel(v);
	}
}

/*
 * The place of a byte is free for another one when the peer has taken it, and when it has landed there: a peer that is ahead has fetched it, and our
 * WRITE of it may still be on its way.
 */
static void use_head(struct verbs_link *v)
{
	uint64_t head = v->head_units << v->credit_shift;

	if (v->head_ahead && head > v->acked_pos)
		head = v->acked_pos;
	if (head <= v->head_pos)
		return;
	v->head_pos = head;
	v->head_ahead = v->head_ahead && head != v->head_units << v->credit_shift;
	v->credit_came = true;
}

/* The count of receive requests, and the head. Both are counts of the peer's that a word shows the low bits of. */
static int take_counts(struct verbs_link *v, uint32_t word)
{
	uint64_t batches = word_receives(word, v->peer_batches);
	uint64_t units = word_credit(word, v->head_units);
	uint64_t tail = peer_read_u64(&v->link->tx.front->tail_pos);

	if (batches * RECV_BATCH > v->messages + RECV_SLOTS)
		return -EPROTO;
	if (units << v->credit_shift > tail)
		return -EPROTO;
	/* Bytes may have waited for these. */
	if (batches != v->peer_batches && receives_known(v) <= 2 * RECVS_KEPT + RECVS_OWED_MAX)
		v->closed = false;
	v->peer_batches = batches;
	if (units != v->head_units) {
		v->head_units = units;
		v->head_ahead = (word & WORD_FLAGS) == WORD_AHEAD;
		use_head(v);
	}
	return 0;
}

/* What was granted is what was told, not what has been taken since. What was told may be ahead of `end`: it was fetched. */
static bool passes_grant(const struct verbs_link *v, uint64_t end)
{
	return (int64_t)(end - (v->told_units << v->credit_shift) - v->ring_bytes) > 0;
}

static int take_word(struct verbs_link *v, uint32_t word)
{
	uint64_t end = v->announced_pos + word_length(word);
	int r = take_counts(v, word);

	if (r < 0)
		return r;
	if (passes_grant(v, end))
		return -EPROTO;
	v->announced_pos = end;
	if ((word & WORD_FLAGS) == WORD_HELD)
		v->held = true;
	else if (word & WORD_FLAGS)
		v->closed = false;
	if (!v->closed)
		v->burst = 0;
	return 0;
}

/* Into our copies of the peer's words, in the order that lane.h's readers rely on. */
static void take_words(struct verbs_link *v, const struct message *m)
{
	struct lane_ctl *rx = v->link->rx.ctl, *tx = v->link->tx.ctl;

	if (m->announce_seq != peer_read_u32(&rx->tx_state.announce_seq))
		lane_announce(rx, m->announce_seq, m->announce_at);
	peer_publish_u32(&rx->tx_state.void_seq, m->void_seq);
	peer_publish_u32(&rx->tx_state.frames, m->words_frames);
	peer_publish_u32(&tx->rx_state.ack_seq, m->ack_seq);
	if (!v->gone)
		peer_publish_u32(&tx->rx_state.asked, m->attention & ATTENTION_SOON ? ASKED_SOON : ASKED_NOTHING);
	fence_full();
	if (m->attention & (ATTENTION_SOON - 1)) {
		fetch_or(&rx->tx_state.wake.peer_word, ATTENTION_TX(m->attention));
		fetch_or(&tx->rx_state.wake.peer_word, ATTENTION_RX(m->attention));
	}
	v->words_came = true;
}

/* Of two that are about to go one says so (ASKED_SOON). What it means is published with what came before it. */
static int take_gone(struct verbs_link *v, const struct message *m)
{
	uint64_t tail = peer_read_u64(&v->link->tx.front->tail_pos);

	if (v->gone || v->told_gone || m->head - v->head_pos > tail - v->head_pos || verbs_tail(v) - m->left_at > v->ring_bytes)
		return -EPROTO;
	v->gone = m->asked;
	v->gone_frames = m->frames;
	v->gone_left = m->left_at;
	v->head_pos = m->head;
	v->head_ahead = false;
	return -ESHUTDOWN;
}

static int take_message(struct verbs_link *v, const uint8_t *bytes)
{
	struct message m;

	/* MEMORY comes first, once. */
	if (!message_get(&m, bytes) || (m.kind == MESSAGE_MEMORY) == v->have_memory)
		return -EPROTO;
	if (m.kind == MESSAGE_MEMORY) {
		v->have_memory = true;
		v->peer_shown = m.shown_address;
		v->peer_shown_key = m.shown_key;
		v->peer_tx = m.ring_address;
		v->peer_tx_key = m.ring_key;
	}
	if (m.kind == MESSAGE_WORDS)
		take_words(v, &m);
	if (m.kind != MESSAGE_GONE)
		return take_word(v, m.word);
	return take_word(v, m.word) < 0 ? -EPROTO : take_gone(v, &m);
}

static int take_received(struct verbs_link *v, const struct ibv_wc *wc)
{
	v->taken++;
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc->wc_flags & IBV_WC_WITH_IMM)
		return v->have_memory ? take_word(v, ntohl(wc->imm_data)) : -EPROTO;
	if (wc->opcode == IBV_WC_RECV && wc->byte_len == MESSAGE_BYTES)
		return take_message(v, v->inbox[wc->wr_id % RECV_SLOTS]);
	return -EPROTO;
}

/* The peer's tail, as its device read it. Behind ours: bytes were posted after it was read. Ahead: no farther than what is granted. */
static int take_tail(struct verbs_link *v)
{
	uint64_t tail = load_relaxed(&v->peer_tail);

	v->fetching = (int64_t)(tail - verbs_tail(v)) > 0;
	if (!v->fetching)
		return 0;
	if (passes_grant(v, tail))
		return -EPROTO;
	v->fetch_to = tail;
	verbs_post_fetch(v);
	return 0;
}

static int take_sent(struct verbs_link *v, const struct ibv_wc *wc)
{
	count_add(&v->counts.send_cqes, 1);
	v->wrs_done = wc->wr_id & ID_MASK;
	store_unlocked(&v->acked_pos, v->pos_at[v->wrs_done % SEND_SLOTS]);
	if (unlikely(v->head_ahead))
		use_head(v);
	switch (wc->wr_id >> TAG_SHIFT) {
	case TAG_GATE:
		v->closed = false;
		v->burst = 0;
		return 0;
	case TAG_GONE:
		v->heard_gone = true;
		return 0;
	case TAG_TAIL:
		return take_tail(v);
	case TAG_BYTES:
		v->fetching = false;
		v->fetched_pos = v->fetch_to;
		return 0;
	default:
		return 0;
	}
}

/* What is flushed after it says nothing; flushed without one, the peer has let go. */
static int take_failure(struct verbs_link *v, const struct ibv_wc *wc)
{
	if (!load_relaxed(&v->counts.status))
		store_relaxed(&v->counts.status, wc->status);
	return wc->status == IBV_WC_WR_FLUSH_ERR ? -ECONNRESET : -EIO;
}

/*
 * Until the queue is empty, errors or not: what arrived before the error counts. Receive requests go back in between, so that a peer that
 * posts faster than this loop ends does not run out of them.
 */
void verbs_poll(struct verbs_link *v)
{
	struct ibv_wc wc[POLL_BATCH];
	int n, r;

	do {
		n = ibv_poll_cq(v->cq, POLL_BATCH, wc);
		if (n < 0) {
			verbs_die(v, -EIO);
			return;
		}
		v->came |= n > 0;
		count_add(&v->counts.cqes, (uint64_t)n);
		for (int i = 0; i < n; i++) {
			v->recvs_back += wc[i].wr_id >> TAG_SHIFT == TAG_RECV;
			if (wc[i].status != IBV_WC_SUCCESS)
				r = take_failure(v, &wc[i]);
			else if (wc[i].wr_id >> TAG_SHIFT == TAG_RECV)
				r = load_relaxed(&v->dead) == -EPROTO ? 0 : take_received(v, &wc[i]);
			else
				r = take_sent(v, &wc[i]);
			if (r < 0)
				verbs_die(v, r);
		}
		if (v->taken >= RECV_BATCH && v->up && verbs_post_receives(v, false) < 0)
			verbs_die(v, -EIO);
	} while (n == POLL_BATCH);
}
