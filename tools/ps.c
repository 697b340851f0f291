/* SPDX-License-Identifier: MIT
 * `ringway ps`: the processes that run under Ringway now, their connections, and for each connection that is on TCP the
 * reason why.
 */
#include "tools/scan.h"
#include "tools/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ADDRESS_TEXT = INET6_ADDRSTRLEN + 8 };

static void format_address(char text[ADDRESS_TEXT], int family, const uint8_t *address, uint16_t port)
{
	char host[INET6_ADDRSTRLEN];

	if (!inet_ntop(family, address, host, sizeof(host)))
		strcpy(host, "?");
	snprintf(text, ADDRESS_TEXT, family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
}

static void format_ends(const struct stats_connection *c, char local[ADDRESS_TEXT], char peer[ADDRESS_TEXT])
{
	format_address(local, c->identity.family, c->identity.local_addr, c->identity.local_port);
	format_address(peer, c->identity.family, c->identity.peer_addr, c->identity.peer_port);
}

/* The reason belongs to a connection that is on TCP, at least one way. None yet for either is not-busy, as in the summary. */
static uint32_t reason_on_tcp(const struct stats_connection *c)
{
	if (c->tx_road == ROAD_TCP && c->rx_road == ROAD_TCP)
		return c->reason == REASON_NONE ? REASON_NOT_BUSY : c->reason;
	return c->tx_road == ROAD_TCP || c->rx_road == ROAD_TCP ? c->reason : REASON_NONE;
}

/* ---- for programs ---- */

static void show_json(int pid, const struct stats_view *view, void *arg)
{
	const char **separator = arg, *between = "";
	struct stats_connection c;

	printf("%s\n{\"pid\":%d,\"program\":", *separator, pid);
	*separator = ",";
	json_string(stdout, view->program);
	printf(",\"connections\":[");
	for (uint32_t i = 0; i < view->nr_slots; i++) {
		char local[ADDRESS_TEXT], peer[ADDRESS_TEXT];

		if (!stats_read(view, i, &c))
			continue;
		format_ends(&c, local, peer);
		printf("%s\n {\"fd\":%d,\"local\":\"%s\",\"peer\":\"%s\",\"tx\":\"%s\",\"rx\":\"%s\",\"reason\":", between,
		       c.identity.fd, local, peer, stats_road_word(c.tx_road), stats_road_word(c.rx_road));
		json_string(stdout, reason_word(reason_on_tcp(&c)));
		printf(",\"tcp_tx_bytes\":%" PRIu64 ",\"tcp_rx_bytes\":%" PRIu64 ",\"ring_tx_bytes\":%" PRIu64
		       ",\"ring_rx_bytes\":%" PRIu64 ",\"switches\":%" PRIu32 ",\"retreats\":%" PRIu32
		       ",\"wr\":%" PRIu64 ",\"doorbells\":%" PRIu64 ",\"cqes\":%" PRIu64 "}",
		       c.tcp_tx_bytes, c.tcp_rx_bytes, c.ring_tx_bytes, c.ring_rx_bytes, c.nr_switches, c.nr_retreats,
		       c.wr, c.doorbells, c.cqes);
		between = ",";
	}
	printf("]}");
}

/* ---- for people ---- */

enum column { PID, PROGRAM, FD, LOCAL, PEER, TX, RX, ON_RINGS, BYTES, WHY, NR_COLUMNS };

struct table {
	char *(*rows)[NR_COLUMNS];
	size_t nr_rows;
	int width[NR_COLUMNS];
	bool reason_seen[NR_REASONS];
	bool out_of_memory;
};

static void table_add(struct table *table, const char *const cells[NR_COLUMNS])
{
	void *rows = reallocarray(table->rows, table->nr_rows + 1, sizeof(*table->rows));

	if (!rows) {
		table->out_of_memory = true;
		return;
	}
	table->rows = rows;
	for (int i = 0; i < NR_COLUMNS; i++) {
		char *copy = strdup(cells[i]);
		int width = (int)strlen(cells[i]);

		table->rows[table->nr_rows][i] = copy;
		if (!copy)
			table->out_of_memory = true;
		else if (width > table->width[i])
			table->width[i] = width;
	}
	table->nr_rows++;
}

static void table_print(const struct table *table, FILE *out)
{
	for (size_t row = 0; row < table->nr_rows; row++) {
		int gap = 0;

		/* The gap before a cell is only printed once there is a cell, so that lines do not end in blanks. */
		for (int i = 0; i < NR_COLUMNS; i++) {
			const char *cell = table->rows[row][i] ? table->rows[row][i] : "";

			if (*cell) {
				fprintf(out, "%*s%s", gap, "", cell);
				gap = -(int)strlen(cell);
			}
			gap += table->width[i] + 2;
		}
		fputc('\n', out);
	}
}

static void table_free(struct table *table)
{
	for (size_t row = 0; row < table->nr_rows; row++)
		for (int i = 0; i < NR_COLUMNS; i++)
			free(table->rows[row][i]);
	free(table->rows);
}

static void format_bytes(char text[16], uint64_t bytes)
{
	static const char units[] = " KMGTPE";
	double value = (double)bytes;
	int unit = 0;

	while (value >= 1000 && unit < 6) {
		value /= 1024;
		unit++;
	}
	if (unit)
		snprintf(text, 16, "%.1f%c", value, units[unit]);
	else
		snprintf(text, 16, "%" PRIu64, bytes);
}

static void show_row(int pid, const struct stats_view *view, void *arg)
{
	char pid_text[16], fd_text[16], local[ADDRESS_TEXT], peer[ADDRESS_TEXT], share[16], bytes[16];
	struct table *table = arg;
	bool empty = true;
	struct stats_connection c;

	snprintf(pid_text, sizeof(pid_text), "%d", pid);
	for (uint32_t i = 0; i < view->nr_slots; i++) {
		uint64_t on_rings, all;
		uint32_t reason;

		if (!stats_read(view, i, &c))
			continue;
		empty = false;
		on_rings = c.ring_tx_bytes + c.ring_rx_bytes;
		all = on_rings + c.tcp_tx_bytes + c.tcp_rx_bytes;
		snprintf(fd_text, sizeof(fd_text), "%d", c.identity.fd);
		snprintf(share, sizeof(share), "%.1f%%", all ? 100.0 * (double)on_rings / (double)all : 0.0);
		format_bytes(bytes, all);
		format_ends(&c, local, peer);
		reason = reason_on_tcp(&c);
		if (reason != REASON_NONE && reason < NR_REASONS)
			table->reason_seen[reason] = true;
		table_add(table, (const char *const[]){ pid_text, view->program, fd_text, local, peer, stats_road_word(c.tx_road),
							stats_road_word(c.rx_road), share, bytes, reason_word(reason) });
	}
	if (empty)
		table_add(table, (const char *const[]){ pid_text, view->program, "-", "no connection", "", "", "", "", "", "" });
}

int ps_show_table(FILE *out)
{
	static const char *const head[NR_COLUMNS] = { "PID", "PROGRAM", "FD", "LOCAL", "PEER", "TX", "RX", "RINGS", "BYTES",
						      "WHY ON TCP" };
	struct table table = { .rows = NULL };
	int nr_processes;

	table_add(&table, head);
	nr_processes = scan_processes(show_row, &table);
	if (nr_processes > 0) {
		table_print(&table, out);
		for (uint32_t reason = 0; reason < NR_REASONS; reason++)
			if (table.reason_seen[reason])
				fprintf(out, "%s: %s\n", reason_word(reason), reason_sentence(reason));
		if (table.out_of_memory)
			complain("ps: out of memory: some rows are missing");
	}
	table_free(&table);
	return nr_processes;
}

static void usage(FILE *out)
{
	fputs("usage: ringway ps [--json]\n\n"
	      "Shows the live processes that have had a busy TCP connection under Ringway: each connection, the road (tcp, shm or\n"
	      "verbs) that each of its directions is on, the share of its bytes that went through rings, and why it is on TCP\n"
	      "where it is. Other users' processes are shown to root only. --json prints the same for programs.\n", out);
}

int command_ps(int argc, char **argv)
{
	const char *separator = "";
	int nr_processes;

	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		usage(stdout);
		return EXIT_GOOD;
	}
	if (argc > 2 || (argc == 2 && strcmp(argv[1], "--json"))) {
		complain("ps: unexpected argument \"%s\"; see ringway ps --help", argv[argc > 2 && !strcmp(argv[1], "--json") ? 2 : 1]);
		return EXIT_USAGE;
	}
	if (argc == 2) {
		fputc('[', stdout);
		nr_processes = scan_processes(show_json, &separator);
		fputs("]\n", stdout);
	} else {
		nr_processes = ps_show_table(stdout);
		if (!nr_processes)
			printf("no process under Ringway has had a busy TCP connection yet%s; start one with: ringway run CMD\n",
			       geteuid() ? " (of those that you may see)" : "");
	}
	if (nr_processes < 0) {
		complain("ps: cannot read /proc: %s", strerror(-nr_processes));
		return EXIT_BAD;
	}
	if (fflush(stdout) || ferror(stdout)) {
		complain("ps: cannot write: %s", strerror(errno));
		return EXIT_BAD;
	}
	return EXIT_GOOD;
}
