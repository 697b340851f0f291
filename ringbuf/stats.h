/* SPDX-License-Identifier: MIT */
/*
 * The statistics segment: what `ringway ps` can see of a live process. Each enabled process that opened a TCP connection
 * holds one memfd named STATS_MEMFD_NAME, sealed against shrink and grow; the tool finds it among /proc/PID/fd and maps
 * it read-only. But for the words by which the tool asks something of it (`ringway off`), only its own process writes it, one thread per field at a
 * time; each field is one relaxed store, so the hot path pays no lock and no fence. A forked child makes its own.
 *
 * The reader trusts nothing: the segment may be torn, corrupt, or made by somebody who only calls it ours. Nor does the process: of what
 * is there it reads back the generation, and the tool's words, of which any value means something harmless.
 */
#ifndef RINGWAY_RINGBUF_STATS_H
#define RINGWAY_RINGBUF_STATS_H

#include "ringbuf/untrusted.h"

#define STATS_MEMFD_NAME "ringway-stats"
#define STATS_MEMFD_LINK "/memfd:" STATS_MEMFD_NAME " (deleted)"
#define STATS_MAGIC UINT64_C(0x7374617473797772) /* "rwystats" in memory */
#define STATS_VERSION 2
#define STATS_PROGRAM_BYTES 64
#define STATS_SLOTS_MAX (UINT32_C(1) << 20)
#define STATS_STEP_SLOTS (UINT32_C(1) << 11)
#define STATS_STEPS_MAX (STATS_SLOTS_MAX / STATS_STEP_SLOTS)

#define REASON(name, word, sentence) REASON_##name,
enum reason {
#include "ringbuf/reasons.def"
	NR_REASONS
};
#undef REASON

/* The word and the sentence of a reason; of an index that is out of range, "unknown". */
const char *reason_word(uint32_t reason);
const char *reason_sentence(uint32_t reason);

enum stats_road { ROAD_TCP, ROAD_SHM, ROAD_VERBS, NR_ROADS };
const char *stats_road_word(uint32_t road);

struct stats_header {
	peer_u64 magic;
	peer_u32 version;
	peer_u32 header_bytes;
	peer_u32 slot_bytes;
	peer_u32 nr_slots;
	peer_u32 pid;
	peer_u32 reserved;
	peer_u64 start_time; /* field 22 of /proc/PID/stat: a number reused for another process shows */
	_Atomic uint8_t program[STATS_PROGRAM_BYTES]; /* ends with NUL */
	/* The tool's. */
	peer_u32 any_off;    /* 0: nothing of the kind is set anywhere */
	peer_u32 all_off;    /* not 0: every connection is to be on TCP */
	uint8_t pad[144];
};

/* One connection of the process. Identity changes only while the generation is even. */
struct stats_slot {
	peer_u32 generation; /* odd = live */
	peer_u32 fd;
	peer_u32 family;     /* AF_INET or AF_INET6 */
	peer_u32 local_port; /* host order */
	peer_u32 peer_port;
	peer_u32 tx_road;    /* enum stats_road */
	peer_u32 rx_road;
	peer_u32 reason;     /* enum reason */
	peer_u32 local_addr[4]; /* network order, the first word for AF_INET */
	peer_u32 peer_addr[4];
	/* Written on the hot path; a line of their own. */
	peer_u64 tcp_tx_bytes;
	peer_u64 tcp_rx_bytes;
	peer_u64 ring_tx_bytes;
	peer_u64 ring_rx_bytes;
	peer_u32 nr_switches;
	peer_u32 nr_retreats;
	/* Of rings between hosts: work requests, doorbells, completions. */
	peer_u64 wr;
	peer_u64 doorbells;
	peer_u64 cqes;
	/* The process's bells for this connection (ringbuf/doorbell.h), port 0: none. Whoever is let in here may wake it. */
	peer_u64 data_key;
	peer_u64 room_key;
	peer_u32 data_port;
	peer_u32 room_port;
	peer_u32 off;        /* the tool's; not 0: this connection is to be on TCP */
	uint8_t pad[36];
};

_Static_assert(sizeof(struct stats_header) == 256, "ABI");
_Static_assert(sizeof(struct stats_slot) == 192, "ABI");
_Static_assert(offsetof(struct stats_slot, tcp_tx_bytes) == 64, "ABI");

/*
 * ---- The writer: the process itself ----
 */
struct stats_writer {
	struct stats_header *header; /* NULL = no segment; all functions are then no-ops that succeed */
	uint32_t nr_slots;
	_Atomic uintptr_t steps[STATS_STEPS_MAX]; /* of the mapping, 0: not mapped yet; a slot keeps its place */
};

/* What identifies a connection. */
struct stats_identity {
	int fd;
	int family;             /* AF_INET, AF_INET6 */
	uint16_t local_port;    /* host order */
	uint16_t peer_port;
	uint8_t local_addr[16]; /* network order, the first 4 bytes for AF_INET */
	uint8_t peer_addr[16];
};

/*
 * Creates and maps the segment for this process: its fd, which must stay open (close-on-exec; the caller may move it), or
 * -errno with the writer left empty. Memory is used only for slots that were used.
 */
int stats_create(struct stats_writer *writer, const char *program, uint32_t nr_slots);

/* Forgets the segment in this process, e.g. the parent's in a forked child. The fd is the caller's. */
void stats_abandon(struct stats_writer *writer);

/* Slot `index` becomes live, or changes its identity; counters start at 0. NULL where there is no such slot. */
struct stats_slot *stats_slot_open(struct stats_writer *writer, uint32_t index, const struct stats_identity *identity);
/* The slot, live or not; NULL where there is none, or none that was ever opened near it. */
struct stats_slot *stats_slot_at(struct stats_writer *writer, uint32_t index);
/* Only the fd: after dup and close the connection may be known by another number. */
void stats_slot_set_fd(struct stats_slot *slot, int fd);
void stats_slot_close(struct stats_slot *slot);

/* Hot: the slot may be NULL. `field` is a peer_u64 of struct stats_slot. */
#define stats_set(slot, field, value) \
	do { \
		struct stats_slot *stats_set_slot = (slot); \
		if (stats_set_slot) \
			store_relaxed(&stats_set_slot->field.peer_word, (value)); \
	} while (0)
#define stats_add(slot, field, value) \
	do { \
		struct stats_slot *stats_add_slot = (slot); \
		if (stats_add_slot) \
			count_add(&stats_add_slot->field.peer_word, (value)); \
	} while (0)

/*
 * ---- The reader: a tool ----
 */
struct stats_view {
	const struct stats_header *header;
	const struct stats_slot *slots;
	uint32_t nr_slots;
	uint64_t bytes;
	/* Copied and bounded. */
	uint32_t pid;
	uint64_t start_time;
	char program[STATS_PROGRAM_BYTES];
};

struct stats_connection {
	struct stats_identity identity;
	enum stats_road tx_road, rx_road;
	uint32_t reason; /* for reason_word() */
	uint64_t tcp_tx_bytes, tcp_rx_bytes, ring_tx_bytes, ring_rx_bytes;
	uint32_t nr_switches, nr_retreats;
	uint64_t wr, doorbells, cqes;
	bool off;
};

/*
 * Maps a segment read-only and checks it: 0, -EPROTO for anything that is not a sealed, complete segment of our version, or
 * -errno. `fd` stays the caller's. Control characters in the program's name are replaced.
 */
int stats_attach(struct stats_view *view, int fd);
void stats_detach(struct stats_view *view);
/* The same, to ask something of the process. `fd` must be writable. */
int stats_attach_to_ask(struct stats_view *view, int fd);

/* Asks: all connections, or that of one slot, are to be off, or not any more. What was asked of single ones is forgotten where all are meant. */
void stats_ask_all(struct stats_view *view, bool off);
void stats_ask_one(struct stats_view *view, uint32_t index, bool off);
bool stats_all_off(const struct stats_view *view);
/* Wakes whoever of the process sleeps on the bells of the slot. 0 or -errno. */
int stats_ring(const struct stats_view *view, uint32_t index);

/* A consistent copy of slot `index`, every value in range. false: not live, changing right now, or nonsense. */
bool stats_read(const struct stats_view *view, uint32_t index, struct stats_connection *out);

/* Field 22 of /proc/PID/stat, or 0 where there is no such process. */
uint64_t stats_start_time(int pid);

#endif
