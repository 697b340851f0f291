/* SPDX-License-Identifier: MIT */
/*
 * What goes out: bytes, the words of a message, credits, and the READs of bytes that the peer holds back. All that is due goes out with one
 * doorbell. What has no room in the send queue, or no receive request at the peer, stays due.
 */
#include <arpa/inet.h>
#include <errno.h>

#include "ringbuf/verbs_engine.h"

static void ring_doorbell(struct verbs_link *v, struct verbs_batch *b)
{
	struct ibv_send_wr *bad;

	if (!b->nr)
		return;
	for (int i = 0; i + 1 < b->nr; i++)
		b->wr[i].next = &b->wr[i + 1];
	count_add(&v->counts.wr, (uint64_t)b->nr);
	count_add(&v->counts.doorbells, 1);
	if (ibv_post_send(v->qp, b->wr, &bad))
		verbs_die(v, -EIO);
	b->nr = 0;
}

static struct ibv_send_wr *next(struct verbs_link *v, struct verbs_batch *b, enum ibv_wr_opcode opcode, enum verbs_tag tag)
{
	struct ibv_send_wr *wr;

	if (b->nr == CHAIN_MAX)
		ring_doorbell(v, b);
	wr = &b->wr[b->nr++];
	*wr = (struct ibv_send_wr){ .opcode = opcode, .wr_id = ++v->wrs | (uint64_t)tag << TAG_SHIFT };
	v->pos_at[v->wrs % SEND_SLOTS] = v->posted_pos;
	if (unlikely(verbs_needs_fence(v)))
		wr->send_flags |= IBV_SEND_FENCE;
	if (tag != TAG_PLAIN || ++v->unsignalled >= SIGNAL_EVERY) {
		wr->send_flags |= IBV_SEND_SIGNALED;
		v->unsignalled = 0;
	}
	return wr;
}

static void payload(struct verbs_link *v, struct verbs_batch *b, struct ibv_send_wr *wr, const void *at, uint32_t len, uint32_t key)
{
	struct ibv_sge *sge = &b->sge[wr - b->wr];

	*sge = (struct ibv_sge){ .addr = (uintptr_t)at, .length = len, .lkey = key };
	wr->sg_list = sge;
	wr->num_sge = len ? 1 : 0;
	if (len && len <= v->max_inline && wr->opcode != IBV_WR_RDMA_READ)
		wr->send_flags |= IBV_SEND_INLINE;
}

/* Our counts, as of now: what they tell need not be told again. A head that was told ahead stays until the rest has come up to it. */
static uint32_t word_now(struct verbs_link *v, uint32_t length, uint32_t flags)
{
	uint64_t units = (flags == WORD_AHEAD ? verbs_head(v) : verbs_head_announced(v)) >> v->credit_shift;

	if (units > v->told_units && !v->going)
		v->told_units = units;
	v->told_batches = v->batches;
	v->messages++;
	count_add(&v->counts.messages, 1);
	return word_make(length, v->told_units, v->batches, flags);
}

static void send_message(struct verbs_link *v, struct verbs_batch *b, struct message *m, enum verbs_tag tag)
{
	struct ibv_send_wr *wr = next(v, b, IBV_WR_SEND, tag);
	uint8_t *out = v->outbox[v->wrs % SEND_SLOTS];

	message_put(out, m);
	payload(v, b, wr, out, MESSAGE_BYTES, v->box_mr->lkey);
}

/* A message that writes `len` bytes (0: none) at `off` of the peer's ring and carries `word`. */
static void send_word(struct verbs_link *v, struct verbs_batch *b, uint64_t off, uint32_t len, uint32_t word, enum verbs_tag tag)
{
	struct ibv_send_wr *wr;

	if (len || !v->no_immediates) {
		wr = next(v, b, v->no_immediates ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, v->no_immediates ? TAG_PLAIN : tag);
		wr->imm_data = htonl(word);
		wr->wr.rdma.remote_addr = v->peer_ring + off;
		wr->wr.rdma.rkey = v->peer_ring_key;
		payload(v, b, wr, v->link->tx.data + off, len, v->tx_mr->lkey);
	}
	if (v->no_immediates) {
		struct message m = { .kind = MESSAGE_WORD, .word = word };

		send_message(v, b, &m, tag);
	}
}

/* Work requests that one message can take: two pieces, and the word's own where there are no immediates. */
static bool has_room(const struct verbs_link *v, uint32_t slots, uint32_t receives)
{
	return slots_free(v) >= slots + 3 && receives_known(v) > receives;
}

/*
 * The gate closes with the last message of a window, and that message says so: what is published behind it may stay here when the call
 * returns.
 */
static void post_piece(struct verbs_link *v, struct verbs_batch *b, uint32_t len)
{
	uint64_t off = v->posted_pos & (v->ring_bytes - 1);
	uint32_t straight = v->ring_bytes - off < len ? (uint32_t)(v->ring_bytes - off) : len;
	enum verbs_tag tag = TAG_PLAIN;
	uint32_t flags = 0;

	v->burst += len < HELD_MAX;
	if (straight < len) {
		struct ibv_send_wr *wr = next(v, b, IBV_WR_RDMA_WRITE, TAG_PLAIN);

		wr->wr.rdma.remote_addr = v->peer_ring + off;
		wr->wr.rdma.rkey = v->peer_ring_key;
		payload(v, b, wr, v->link->tx.data + off, straight, v->tx_mr->lkey);
		off = 0;
	}
	/* One that is closed has said so, and was not answered yet. */
	if (v->burst >= WINDOW && !v->closed) {
		tag = TAG_GATE;
		v->closed = true;
		flags = WORD_HELD;
	}
	send_word(v, b, off, straight < len ? len - straight : len, word_now(v, len, flags), tag);
	v->posted_pos += len;
	v->pos_at[v->wrs % SEND_SLOTS] = v->posted_pos;
}

/*
 * A message of few bytes takes a receive request like any other, and a peer whose program is busy posts no more. So that who closes can always
 * send the rest, as many are left as all that may still be published takes in the largest pieces: each of those takes its own. And some for what is
 * told meanwhile.
 */
static uint32_t receives_owed(const struct verbs_link *v, uint32_t len)
{
	uint64_t rest = v->head_pos + v->ring_bytes - v->posted_pos - len;
	uint64_t owed = (rest + PIECE_MAX - 1) / PIECE_MAX;

	if (len == PIECE_MAX)
		return 0;
	return RECVS_KEPT + (owed < RECVS_OWED_MAX ? (uint32_t)owed : RECVS_OWED_MAX);
}

static void post_bytes(struct verbs_link *v, struct verbs_batch *b, unsigned asked)
{
	uint64_t tail = load_relaxed(&v->shown->tail_pos);

	if (tail - v->posted_pos > v->ring_bytes) {
		verbs_die(v, -EPROTO);
		return;
	}
	while (v->posted_pos != tail) {
		uint64_t left = tail - v->posted_pos;
		uint32_t len = left < PIECE_MAX ? (uint32_t)left : PIECE_MAX;

		if (v->closed && !(asked & (VERBS_ARM | VERBS_LEAVE)) && left < HELD_MAX)
			break;
		if (!has_room(v, SLOTS_KEPT, RECVS_KEPT + (asked & VERBS_LEAVE ? 0 : receives_owed(v, len))))
			break;
		post_piece(v, b, len);
	}
}

/* It stands until what it tells of is said. */
static bool goes_soon(const struct verbs_link *v)
{
	uint32_t asked = peer_read_u32(&v->link->rx.ctl->rx_state.asked);

	return asked == ASKED_SOON || (asked >= ASKED_GONE && v->told_soon);
}

/*
 * Our words of layout.h, where one of them is not what the peer was told. That an announcement is void it learns from the bytes that came instead of
 * the frame; whom they cannot tell waits for the word, with VERBS_LEAVE. So a void goes with the next announcement, and not before it.
 */
static void look_at_words(struct verbs_link *v, unsigned asked)
{
	struct lane_ctl *tx = v->link->tx.ctl, *rx = v->link->rx.ctl;
	bool all = asked & (VERBS_ARM | VERBS_LEAVE) || unlikely(peer_read_u32(&rx->rx_state.asked) >= ASKED_GONE);
	uint64_t at;
	uint32_t flags;

	flags = ring_tx_own_attention(&v->link->tx);
	if (flags)
		v->attention |= ATTENTION_OF_TX(flags);
	flags = ring_rx_own_attention(&v->link->rx);
	if (flags)
		v->attention |= ATTENTION_OF_RX(flags);
	if (v->attention || peer_read_u32(&rx->rx_state.ack_seq) != v->told_ack || unlikely(goes_soon(v) != v->told_soon))
		v->words_due = true;
	if (all && (peer_read_u32(&tx->tx_state.void_seq) != v->told_void || peer_read_u32(&tx->tx_state.frames) != v->told_frames))
		v->words_due = true;
	/* One that is being changed right now is told of by who changes it. */
	if (lane_announced(tx, &at) && peer_read_u32(&tx->tx_state.announce_seq) != v->told_announce)
		v->words_due = true;
}

static void post_words(struct verbs_link *v, struct verbs_batch *b)
{
	struct lane_ctl *tx = v->link->tx.ctl, *rx = v->link->rx.ctl;
	bool soon = goes_soon(v);
	struct message m = { .kind = MESSAGE_WORDS, .attention = (uint8_t)(v->attention | (soon ? ATTENTION_SOON : 0)) };
	uint64_t at = 0;

	m.announce_seq = lane_announced(tx, &at);
	if (!m.announce_seq && v->told_announce)
		return;
	m.announce_at = at;
	m.void_seq = peer_read_u32(&tx->tx_state.void_seq);
	m.ack_seq = peer_read_u32(&rx->rx_state.ack_seq);
	m.words_frames = peer_read_u32(&tx->tx_state.frames);
	m.word = word_now(v, 0, 0);
	v->told_announce = m.announce_seq;
	v->told_void = m.void_seq;
	v->told_ack = m.ack_seq;
	v->told_frames = m.words_frames;
	v->told_soon = soon;
	v->attention = 0;
	v->words_due = false;
	send_message(v, b, &m, TAG_PLAIN);
}

/* Behind all bytes and words: who has it has everything, and knows how far the peer has come. */
static void post_gone(struct verbs_link *v, struct verbs_batch *b)
{
	struct message m = { .kind = MESSAGE_GONE };

	m.asked = peer_read_u32(&v->link->rx.ctl->rx_state.asked);
	if (likely(m.asked < ASKED_GONE) || v->told_gone || v->words_due || v->posted_pos != load_relaxed(&v->shown->tail_pos) || !has_room(v, 0, 0))
		return;
	m.frames = peer_read_u32(&v->link->tx.ctl->tx_state.frames);
	m.head = verbs_head(v);
	m.left_at = peer_read_u64(&v->link->tx.ctl->tx_state.left_at);
	m.word = word_now(v, 0, 0);
	v->told_gone = true;
	send_message(v, b, &m, TAG_GONE);
}

static void post_memory(struct verbs_link *v, struct verbs_batch *b)
{
	struct message m = {
		.kind = MESSAGE_MEMORY,
		.shown_key = v->shown_mr->rkey,
		.ring_key = v->tx_mr->rkey,
		.shown_address = (uintptr_t)v->shown,
		.ring_address = (uintptr_t)v->link->tx.data,
	};

	m.word = word_now(v, 0, 0);
	v->memory_due = false;
	send_message(v, b, &m, TAG_PLAIN);
}

/* Half of a ring, or of the receive requests, is not told of. */
static bool credit_due(const struct verbs_link *v)
{
	return (!v->going && (int64_t)((verbs_head(v) >> v->credit_shift) - v->told_units) >= CREDIT_UNITS / 2) ||
	       (v->batches - v->told_batches) * RECV_BATCH >= RECV_SLOTS / 2;
}

/* Bytes that were fetched are taken, and the sender has not written them yet. */
static bool is_ahead(const struct verbs_link *v)
{
	return verbs_head(v) >> v->credit_shift > verbs_head_announced(v) >> v->credit_shift;
}

/* REOPEN first: the peer's device takes it before it answers the READ. */
static void post_fetch_of_tail(struct verbs_link *v, struct verbs_batch *b)
{
	struct ibv_send_wr *wr;

	v->held = false;
	v->fetching = true;
	v->fetch_from = UINT64_MAX;
	v->empties = 0;
	count_add(&v->counts.fetches, 1);
	send_word(v, b, 0, 0, word_now(v, 0, WORD_REOPEN), TAG_PLAIN);
	wr = next(v, b, IBV_WR_RDMA_READ, TAG_TAIL);
	wr->wr.rdma.remote_addr = v->peer_shown;
	wr->wr.rdma.rkey = v->peer_shown_key;
	payload(v, b, wr, &v->peer_tail, sizeof(v->peer_tail), v->tail_mr->lkey);
}

void verbs_post_fetch(struct verbs_link *v)
{
	struct verbs_batch b;
	uint64_t pos = verbs_tail(v);

	b.nr = 0;
	if (slots_free(v) < 2) {
		v->fetching = false;
		v->held = true;
		return;
	}
	v->fetch_from = pos;
	while (pos < v->fetch_to) {
		uint64_t off = pos & (v->ring_bytes - 1);
		uint64_t len = v->fetch_to - pos < v->ring_bytes - off ? v->fetch_to - pos : v->ring_bytes - off;
		struct ibv_send_wr *wr = next(v, &b, IBV_WR_RDMA_READ, pos + len == v->fetch_to ? TAG_BYTES : TAG_PLAIN);

		wr->wr.rdma.remote_addr = v->peer_tx + off;
		wr->wr.rdma.rkey = v->peer_tx_key;
		payload(v, &b, wr, v->link->rx.data + off, (uint32_t)len, v->rx_mr->lkey);
		pos += len;
	}
	ring_doorbell(v, &b);
}

void verbs_post(struct verbs_link *v, unsigned asked, bool fetch)
{
	struct verbs_batch b;
	enum verbs_tag tag = TAG_PLAIN;
	bool hold;

	b.nr = 0;
	if (v->memory_due)
		post_memory(v, &b);
	look_at_words(v, asked);
	if (v->words_due && has_room(v, 0, 0))
		post_words(v, &b);
	post_bytes(v, &b, asked);
	post_gone(v, &b);
	/* Bytes that found no room stay here, and the peer is told: once, unless what they lack comes back by itself. */
	hold = v->posted_pos != load_relaxed(&v->shown->tail_pos) && !v->closed;
	if (hold && slots_free(v) < SLOTS_KEPT + 3)
		tag = TAG_GATE;
	if (hold && has_room(v, 0, 0)) {
		count_add(&v->counts.credits, 1);
		v->closed = true;
		send_word(v, &b, 0, 0, word_now(v, 0, WORD_HELD), tag);
	}
	if (credit_due(v) && has_room(v, 0, 0)) {
		count_add(&v->counts.credits, 1);
		send_word(v, &b, 0, 0, word_now(v, 0, is_ahead(v) ? WORD_AHEAD : 0), TAG_PLAIN);
	}
	if (fetch && has_room(v, 2, 0))
		post_fetch_of_tail(v, &b);
	/* A head that was told ahead waits for our bytes to land. */
	if (v->head_ahead && v->acked_pos != v->posted_pos)
		v->probe_due = true;
	/* A signalled request that is under way will do. */
	if (v->probe_due && v->wrs != v->wrs_done && !v->unsignalled)
		v->probe_due = false;
	if (v->probe_due && has_room(v, 0, 0)) {
		struct ibv_send_wr *wr = next(v, &b, IBV_WR_RDMA_WRITE, TAG_PLAIN);

		wr->wr.rdma.remote_addr = v->peer_ring;
		wr->wr.rdma.rkey = v->peer_ring_key;
		wr->send_flags |= IBV_SEND_SIGNALED;
		v->unsignalled = 0;
		v->probe_due = false;
	}
	ring_doorbell(v, &b);
}

/* A request takes some fifty bytes, and threads of the program may have little stack: so not all at once. */
#define POST_MOST (2 * RECV_BATCH)

static int post_some(struct verbs_link *v, uint32_t nr)
{
	struct ibv_recv_wr wr[POST_MOST], *bad;
	struct ibv_sge sge[POST_MOST];

	for (uint32_t i = 0; i < nr; i++) {
		uint64_t slot = (v->batches * RECV_BATCH + i) % RECV_SLOTS;

		sge[i] = (struct ibv_sge){ .addr = (uintptr_t)v->inbox[slot], .length = MESSAGE_BYTES, .lkey = v->box_mr->lkey };
		wr[i] = (struct ibv_recv_wr){
			.wr_id = slot | (uint64_t)TAG_RECV << TAG_SHIFT,
			.next = i + 1 < nr ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1,
		};
	}
	if (ibv_post_recv(v->qp, wr, &bad))
		return -EIO;
	v->batches += nr / RECV_BATCH;
	count_add(&v->counts.recv_posts, 1);
	count_add(&v->counts.recvs, nr);
	return 0;
}

int verbs_post_receives(struct verbs_link *v, bool all)
{
	uint32_t left = all ? RECV_SLOTS : v->taken / RECV_BATCH * RECV_BATCH;

	if (left > RECV_SLOTS)
		left = RECV_SLOTS;
	while (left > 0) {
		uint32_t nr = left > POST_MOST ? POST_MOST : left;

		if (post_some(v, nr))
			return -EIO;
		v->taken -= all ? 0 : nr;
		left -= nr;
	}
	return 0;
}
