/* SPDX-License-Identifier: MIT */
/* The statistics segment's writer and reader, and the words for reasons and roads. */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "ringbuf/doorbell.h"
#include "ringbuf/mapped.h"
#include "ringbuf/memfd.h"
#include "ringbuf/stats.h"
#include "ringbuf/sys.h"

#define REASON(name, word, sentence) { word, sentence },
static const struct {
	const char *word, *sentence;
} reasons[] = {
#include "ringbuf/reasons.def"
};
#undef REASON
_Static_assert(sizeof(reasons) / sizeof(reasons[0]) == NR_REASONS, "one row for each reason");

static const char *const roads[] = { [ROAD_TCP] = "tcp", [ROAD_SHM] = "shm", [ROAD_VERBS] = "verbs" };
_Static_assert(sizeof(roads) / sizeof(roads[0]) == NR_ROADS, "one word for each road");

const char *reason_word(uint32_t reason)
{
	return reason < NR_REASONS ? reasons[reason].word : "unknown";
}

const char *reason_sentence(uint32_t reason)
{
	return reason < NR_REASONS ? reasons[reason].sentence : "unknown";
}

const char *stats_road_word(uint32_t road)
{
	return road < NR_ROADS ? roads[road] : "unknown";
}

static uint64_t segment_bytes(uint32_t nr_slots)
{
	return sizeof(struct stats_header) + (uint64_t)nr_slots * sizeof(struct stats_slot);
}

/* The command in field 2 may hold blanks and brackets, so fields are counted from the last bracket. */
uint64_t stats_start_time(int pid)
{
	char path[32] = "/proc/", text[1024], digits[12];
	const char *field;
	uint64_t start = 0;
	ssize_t got;
	int fd, i, nr_digits = 0;
	size_t at = 6;

	if (pid <= 0)
		return 0;
	for (i = pid; i; i /= 10)
		digits[nr_digits++] = (char)('0' + i % 10);
	while (nr_digits)
		path[at++] = digits[--nr_digits];
	memcpy(path + at, "/stat", sizeof("/stat"));
	fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	got = sys_read(fd, text, sizeof(text) - 1);
	sys_close(fd);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	field = strrchr(text, ')');
	for (i = 2; field && i < 22; i++) {
		field = strchr(field, ' ');
		if (field)
			field++;
	}
	for (; field && *field >= '0' && *field <= '9'; field++)
		start = start * 10 + (uint64_t)(*field - '0');
	return start;
}

/*
 * ---- The writer ----
 *
 * Mapped in steps: what is not used yet is not to count against a limit of the program's address space. The header shifts the slots, so that a step reaches
 * into one page more, where the next one begins.
 */
#define PAGE 65536 /* none is larger */
#define WRITER_STEP_BYTES (STATS_STEP_SLOTS * sizeof(struct stats_slot))
#define WRITER_STEP_MAPPED (WRITER_STEP_BYTES + PAGE)
_Static_assert(WRITER_STEP_BYTES % PAGE == 0 && sizeof(struct stats_header) <= PAGE, "a step begins with a page");

int stats_create(struct stats_writer *writer, const char *program, uint32_t nr_slots)
{
	uint64_t bytes = segment_bytes(nr_slots);
	struct stats_header *header;
	long base;
	int fd, pid = sys_getpid();
	size_t i;

	memset(writer, 0, sizeof(*writer));
	if (!nr_slots || nr_slots > STATS_SLOTS_MAX)
		return -EINVAL;
	fd = memfd_create_sealed(STATS_MEMFD_NAME, bytes);
	if (fd < 0)
		return fd;
	sys_fchmod(fd, 0600);
	base = sys_mmap(NULL, WRITER_STEP_MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sys_failed(base)) {
		sys_close(fd);
		return (int)base;
	}
	header = (struct stats_header *)base;
	peer_publish_u32(&header->version, STATS_VERSION);
	peer_publish_u32(&header->header_bytes, sizeof(*header));
	peer_publish_u32(&header->slot_bytes, sizeof(struct stats_slot));
	peer_publish_u32(&header->nr_slots, nr_slots);
	peer_publish_u32(&header->pid, (uint32_t)pid);
	peer_publish_u64(&header->start_time, stats_start_time(pid));
	for (i = 0; i < STATS_PROGRAM_BYTES - 1 && program[i]; i++)
		store_relaxed(&header->program[i], (uint8_t)program[i]);
	peer_publish_u64(&header->magic, STATS_MAGIC);
	writer->header = header;
	store_release(&writer->steps[0], (uintptr_t)base);
	mapped_add(WRITER_STEP_MAPPED);
	writer->nr_slots = nr_slots;
	return fd;
}

static struct stats_slot *slots_of(uintptr_t step)
{
	return (struct stats_slot *)(step + sizeof(struct stats_header));
}

struct stats_slot *stats_slot_at(struct stats_writer *writer, uint32_t index)
{
	uintptr_t step;

	if (index >= writer->nr_slots)
		return NULL;
	step = load_acquire(&writer->steps[index / STATS_STEP_SLOTS]);
	return step ? slots_of(step) + index % STATS_STEP_SLOTS : NULL;
}

static bool map_step(struct stats_writer *writer, uint32_t step)
{
	uintptr_t none = 0;
	long at;

	if (load_acquire(&writer->steps[step]))
		return true;
	at = mapped_more(writer->header, step * (size_t)WRITER_STEP_BYTES, WRITER_STEP_MAPPED);
	if (sys_failed(at))
		return false;
	if (compare_exchange(&writer->steps[step], &none, (uintptr_t)at))
		mapped_add(WRITER_STEP_MAPPED);
	else
		sys_munmap((void *)at, WRITER_STEP_MAPPED);
	return true;
}

void stats_abandon(struct stats_writer *writer)
{
	for (size_t i = 0; writer->header && i < STATS_STEPS_MAX; i++)
		if (load_relaxed(&writer->steps[i])) {
			sys_munmap((void *)load_relaxed(&writer->steps[i]), WRITER_STEP_MAPPED);
			mapped_sub(WRITER_STEP_MAPPED);
		}
	memset(writer, 0, sizeof(*writer));
}

static void put_address(peer_u32 *to, const uint8_t *from)
{
	uint32_t words[4];
	int i;

	memcpy(words, from, sizeof(words));
	for (i = 0; i < 4; i++)
		store_relaxed(&to[i].peer_word, words[i]);
}

/* Even while the identity changes; a reader compares the generation before and after, see stats_read(). */
struct stats_slot *stats_slot_open(struct stats_writer *writer, uint32_t index, const struct stats_identity *identity)
{
	struct stats_slot *slot;
	uint32_t generation;

	if (!writer->header || index >= writer->nr_slots || !map_step(writer, index / STATS_STEP_SLOTS))
		return NULL;
	slot = stats_slot_at(writer, index);
	generation = (load_relaxed(&slot->generation.peer_word) + 1) & ~UINT32_C(1);
	store_relaxed(&slot->generation.peer_word, generation);
	fence_release();
	stats_set(slot, fd, (uint32_t)identity->fd);
	stats_set(slot, family, (uint32_t)identity->family);
	stats_set(slot, local_port, identity->local_port);
	stats_set(slot, peer_port, identity->peer_port);
	put_address(slot->local_addr, identity->local_addr);
	put_address(slot->peer_addr, identity->peer_addr);
	stats_set(slot, tx_road, ROAD_TCP);
	stats_set(slot, rx_road, ROAD_TCP);
	stats_set(slot, reason, REASON_NONE);
	stats_set(slot, tcp_tx_bytes, 0);
	stats_set(slot, tcp_rx_bytes, 0);
	stats_set(slot, ring_tx_bytes, 0);
	stats_set(slot, ring_rx_bytes, 0);
	stats_set(slot, nr_switches, 0);
	stats_set(slot, nr_retreats, 0);
	stats_set(slot, wr, 0);
	stats_set(slot, doorbells, 0);
	stats_set(slot, cqes, 0);
	stats_set(slot, data_port, 0);
	stats_set(slot, room_port, 0);
	stats_set(slot, off, 0);
	peer_publish_u32(&slot->generation, generation + 1);
	return slot;
}

void stats_slot_set_fd(struct stats_slot *slot, int fd)
{
	stats_set(slot, fd, (uint32_t)fd);
}

void stats_slot_close(struct stats_slot *slot)
{
	if (slot)
		peer_publish_u32(&slot->generation, (load_relaxed(&slot->generation.peer_word) + 1) & ~UINT32_C(1));
}

/*
 * ---- The reader ----
 */

static void get_program(char *to, const struct stats_header *header)
{
	size_t i;

	memset(to, 0, STATS_PROGRAM_BYTES);
	for (i = 0; i < STATS_PROGRAM_BYTES - 1; i++) {
		uint8_t c = load_relaxed(&((struct stats_header *)header)->program[i]);

		if (!c)
			break;
		to[i] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
	}
}

static int attach(struct stats_view *view, int fd, int prot)
{
	const struct stats_header *header;
	uint64_t bytes;
	uint32_t nr_slots, pid;
	long base;
	int ret;

	memset(view, 0, sizeof(*view));
	ret = memfd_check_sealed(fd, &bytes);
	if (ret < 0)
		return ret;
	if (bytes < segment_bytes(1) || bytes > segment_bytes(STATS_SLOTS_MAX))
		return -EPROTO;
	base = sys_mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (sys_failed(base))
		return (int)base;
	header = (const struct stats_header *)base;
	nr_slots = peer_read_u32(&header->nr_slots);
	pid = peer_read_u32(&header->pid);
	if (peer_read_u64(&header->magic) != STATS_MAGIC || peer_read_u32(&header->version) != STATS_VERSION ||
	    peer_read_u32(&header->header_bytes) != sizeof(*header) ||
	    peer_read_u32(&header->slot_bytes) != sizeof(struct stats_slot) || !nr_slots || nr_slots > STATS_SLOTS_MAX ||
	    segment_bytes(nr_slots) != bytes || pid > INT32_MAX) {
		sys_munmap((void *)base, bytes);
		return -EPROTO;
	}
	view->header = header;
	view->slots = (const struct stats_slot *)(header + 1);
	view->nr_slots = nr_slots;
	view->bytes = bytes;
	view->pid = pid;
	view->start_time = peer_read_u64(&header->start_time);
	get_program(view->program, header);
	return 0;
}

int stats_attach(struct stats_view *view, int fd)
{
	return attach(view, fd, PROT_READ);
}

int stats_attach_to_ask(struct stats_view *view, int fd)
{
	return attach(view, fd, PROT_READ | PROT_WRITE);
}

void stats_detach(struct stats_view *view)
{
	if (view->header)
		sys_munmap((void *)view->header, view->bytes);
	memset(view, 0, sizeof(*view));
}

static void get_address(uint8_t *to, const peer_u32 *from)
{
	uint32_t words[4];
	int i;

	for (i = 0; i < 4; i++)
		words[i] = peer_read_u32(&from[i]);
	memcpy(to, words, sizeof(words));
}

bool stats_read(const struct stats_view *view, uint32_t index, struct stats_connection *out)
{
	const struct stats_slot *slot;
	uint32_t generation, family, local_port, peer_port, fd, tx_road, rx_road;

	if (index >= view->nr_slots)
		return false;
	slot = &view->slots[index];
	generation = peer_read_u32(&slot->generation);
	if (!(generation & 1))
		return false;
	memset(out, 0, sizeof(*out));
	fd = peer_read_u32(&slot->fd);
	family = peer_read_u32(&slot->family);
	local_port = peer_read_u32(&slot->local_port);
	peer_port = peer_read_u32(&slot->peer_port);
	get_address(out->identity.local_addr, slot->local_addr);
	get_address(out->identity.peer_addr, slot->peer_addr);
	tx_road = peer_read_u32(&slot->tx_road);
	rx_road = peer_read_u32(&slot->rx_road);
	out->reason = index_within(peer_read_u32(&slot->reason), NR_REASONS);
	out->tcp_tx_bytes = peer_read_u64(&slot->tcp_tx_bytes);
	out->tcp_rx_bytes = peer_read_u64(&slot->tcp_rx_bytes);
	out->ring_tx_bytes = peer_read_u64(&slot->ring_tx_bytes);
	out->ring_rx_bytes = peer_read_u64(&slot->ring_rx_bytes);
	out->nr_switches = peer_read_u32(&slot->nr_switches);
	out->nr_retreats = peer_read_u32(&slot->nr_retreats);
	out->wr = peer_read_u64(&slot->wr);
	out->doorbells = peer_read_u64(&slot->doorbells);
	out->cqes = peer_read_u64(&slot->cqes);
	out->off = peer_read_u32(&slot->off) != 0;
	fence_acquire();
	if (peer_read_u32(&slot->generation) != generation)
		return false;
	if (fd > INT32_MAX || (family != AF_INET && family != AF_INET6) || local_port > UINT16_MAX ||
	    peer_port > UINT16_MAX || tx_road >= NR_ROADS || rx_road >= NR_ROADS)
		return false;
	out->identity.fd = (int)fd;
	out->identity.family = (int)family;
	out->identity.local_port = (uint16_t)local_port;
	out->identity.peer_port = (uint16_t)peer_port;
	out->tx_road = (enum stats_road)tx_road;
	out->rx_road = (enum stats_road)rx_road;
	return true;
}

/*
 * ---- Asking ----
 */

static struct stats_slot *slot_to_ask(const struct stats_view *view, uint32_t index)
{
	return (struct stats_slot *)&view->slots[index];
}

static bool any_single(const struct stats_view *view)
{
	for (uint32_t i = 0; i < view->nr_slots; i++)
		if (peer_read_u32(&view->slots[i].generation) & 1 && peer_read_u32(&view->slots[i].off))
			return true;
	return false;
}

/* `any_off` is set before what it stands for, and taken back after it: the process may look too often, not too seldom. */
static void settle_any(struct stats_view *view)
{
	struct stats_header *header = (struct stats_header *)view->header;

	peer_publish_u32(&header->any_off, peer_read_u32(&header->all_off) || any_single(view));
}

void stats_ask_all(struct stats_view *view, bool off)
{
	struct stats_header *header = (struct stats_header *)view->header;

	peer_publish_u32(&header->any_off, 1);
	peer_publish_u32(&header->all_off, off);
	for (uint32_t i = 0; i < view->nr_slots; i++)
		if (peer_read_u32(&view->slots[i].off))
			peer_publish_u32(&slot_to_ask(view, i)->off, 0);
	settle_any(view);
}

void stats_ask_one(struct stats_view *view, uint32_t index, bool off)
{
	peer_publish_u32(&((struct stats_header *)view->header)->any_off, 1);
	peer_publish_u32(&slot_to_ask(view, index)->off, off);
	settle_any(view);
}

bool stats_all_off(const struct stats_view *view)
{
	return peer_read_u32(&view->header->all_off) != 0;
}

int stats_ring(const struct stats_view *view, uint32_t index)
{
	const struct stats_slot *slot = &view->slots[index];
	struct bell_address data = { .key = peer_read_u64(&slot->data_key), .port = peer_read_u32(&slot->data_port) };
	struct bell_address room = { .key = peer_read_u64(&slot->room_key), .port = peer_read_u32(&slot->room_port) };
	int fd, ret, ret2;

	fd = sys_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_USERSOCK);
	if (fd < 0)
		return fd;
	ret = bell_ring(fd, &data);
	ret2 = bell_ring(fd, &room);
	sys_close(fd);
	return ret ? ret : ret2;
}
