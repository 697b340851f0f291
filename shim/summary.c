/* SPDX-License-Identifier: MIT */
/*
 * See summary.h. The file is opened at start and kept (hidden) where that is possible: by the time the process ends it may
 * have changed its root, directory or user. A process that opens no connection leaves the file as it was.
 */
#include "shim/summary.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ringbuf/atomic.h"
#include "ringbuf/stats.h"
#include "ringbuf/sys.h"
#include "shim/inherit.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/own_fd.h"
#include "shim/program.h"
#include "shim/text.h"

static struct {
	_Atomic uint64_t connections;
	_Atomic uint64_t shm, verbs;
	_Atomic uint64_t retreated;
	_Atomic uint64_t switches, retreats;
	_Atomic uint64_t tcp_tx, tcp_rx, ring_tx, ring_rx;
	_Atomic uint64_t wr, doorbells, cqes;
	_Atomic uint64_t reasons[NR_REASONS];
} totals;

static int summary_fd = -1;
static bool complained;

static void complain(int err)
{
	if (!complained)
		log_error("the summary %s cannot be written (%m)", options.summary_path, err);
	complained = true;
}

static int open_path(void)
{
	return sys_openat(AT_FDCWD, options.summary_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
}

static bool to_stderr(void)
{
	return strcmp(options.summary_path, "stderr") == 0;
}

int summary_init(void)
{
	int fd;

	if (!options.summary_path || to_stderr())
		return 0;
	fd = open_path();
	/* A path that cannot be is a mistake somebody should hear of; one that this user may not write is one if there is something to say. */
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -EISDIR)
		complain(-fd);
	else if (fd < 0)
		log_warn("the summary %s cannot be written (%m)", options.summary_path, -fd);
	else
		(void)own_fd_adopt(fd, &summary_fd);
	return 0;
}

void summary_add_connection(void)
{
	fetch_add(&totals.connections, 1);
}

void summary_add_switched(unsigned int transport)
{
	fetch_add(transport == TRANSPORT_BIT_VERBS ? &totals.verbs : &totals.shm, 1);
}

void summary_add_retreated(void)
{
	fetch_add(&totals.retreated, 1);
}

void summary_add_switch(void)
{
	fetch_add(&totals.switches, 1);
}

void summary_add_retreat(void)
{
	fetch_add(&totals.retreats, 1);
}

static void add(_Atomic uint64_t *total, uint64_t n)
{
	if (n)
		fetch_add(total, n);
}

void summary_add_bytes(uint64_t tcp_tx, uint64_t tcp_rx, uint64_t ring_tx, uint64_t ring_rx)
{
	add(&totals.tcp_tx, tcp_tx);
	add(&totals.tcp_rx, tcp_rx);
	add(&totals.ring_tx, ring_tx);
	add(&totals.ring_rx, ring_rx);
}

void summary_add_verbs(uint64_t wr, uint64_t doorbells, uint64_t cqes)
{
	add(&totals.wr, wr);
	add(&totals.doorbells, doorbells);
	add(&totals.cqes, cqes);
}

void summary_add_reason(unsigned int reason)
{
	if (reason != REASON_NONE && reason < NR_REASONS)
		fetch_add(&totals.reasons[reason], 1);
}

static _Atomic uint32_t being_told;

void summary_in_child(void)
{
	store_relaxed(&being_told, 0);
	memset(&totals, 0, sizeof(totals));
}

static uint64_t take(_Atomic uint64_t *total)
{
	return exchange(total, 0);
}

static void add_member(struct text *text, const char *before, const char *name, _Atomic uint64_t *total)
{
	text_add(text, before);
	text_add_json(text, name);
	text_add(text, ":");
	text_add_number(text, take(total), 10);
}

static void format_line(struct text *text)
{
	const char *separator = "";

	text_add(text, "{\"pid\":");
	text_add_number(text, (uint64_t)inherit_pid, 10);
	text_add(text, ",\"program\":");
	text_add_json(text, program_name);
	add_member(text, ",", "connections", &totals.connections);
	add_member(text, ",\"switched\":{", "shm", &totals.shm);
	add_member(text, ",", "verbs", &totals.verbs);
	add_member(text, "},", "retreated", &totals.retreated);
	add_member(text, ",", "switches", &totals.switches);
	add_member(text, ",", "retreats", &totals.retreats);
	add_member(text, ",", "tcp_tx_bytes", &totals.tcp_tx);
	add_member(text, ",", "tcp_rx_bytes", &totals.tcp_rx);
	add_member(text, ",", "ring_tx_bytes", &totals.ring_tx);
	add_member(text, ",", "ring_rx_bytes", &totals.ring_rx);
	add_member(text, ",", "wr", &totals.wr);
	add_member(text, ",", "doorbells", &totals.doorbells);
	add_member(text, ",", "cqes", &totals.cqes);
	text_add(text, ",\"reasons\":{");
	for (unsigned int i = 0; i < NR_REASONS; i++)
		if (load_relaxed(&totals.reasons[i])) {
			add_member(text, separator, reason_word(i), &totals.reasons[i]);
			separator = ",";
		}
	text_add(text, "}}");
	text_end_line(text);
}

static bool anything_to_tell(void)
{
	return load_relaxed(&totals.connections) || load_relaxed(&totals.tcp_tx) || load_relaxed(&totals.tcp_rx) ||
	       load_relaxed(&totals.ring_tx) || load_relaxed(&totals.ring_rx);
}

void summary_write(void)
{
	/* Not on the stack, which may be a signal handler's own. Who comes in the middle has nothing to add. */
	static char bytes[4096];
	struct text text;
	int fd, err;

	if (!options.summary_path || !anything_to_tell() || exchange(&being_told, 1))
		return;
	text_start(&text, bytes, sizeof(bytes));
	format_line(&text);
	if (to_stderr()) {
		text_to_stderr(&text);
		goto done;
	}
	fd = summary_fd >= 0 ? summary_fd : open_path();
	err = fd < 0 ? fd : text_write(&text, fd);
	if (fd >= 0 && fd != summary_fd)
		(void)sys_close(fd);
	if (err)
		complain(-err);
done:
	store_relaxed(&being_told, 0);
}
