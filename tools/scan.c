/* SPDX-License-Identifier: MIT
 * A segment is only believed to be the process's own: a forked child still holds its parent's for a moment, and a
 * file descriptor can be passed to anybody. So the pid and the start time inside it must be the holder's.
 */
#include "tools/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The pid that the process itself sees: the last number of NSpid in /proc/PID/status. 0: no such process. */
static uint32_t own_pid_of(int pid)
{
	char path[64], line[256];
	uint32_t own = 0;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	status = fopen(path, "re");
	if (!status)
		return 0;
	while (fgets(line, sizeof(line), status)) {
		const char *last;

		if (strncmp(line, "NSpid:", 6))
			continue;
		last = strrchr(line, '\t');
		own = last ? (uint32_t)strtoul(last + 1, NULL, 10) : 0;
		break;
	}
	fclose(status);
	return own;
}

static bool is_segment_link(const char *path)
{
	char target[sizeof(STATS_MEMFD_LINK)];
	ssize_t length = readlink(path, target, sizeof(target));

	return length == sizeof(STATS_MEMFD_LINK) - 1 && !memcmp(target, STATS_MEMFD_LINK, (size_t)length);
}

static bool attach_own(struct stats_view *view, const char *path, int pid, bool to_ask)
{
	int fd = open(path, (to_ask ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int status;

	if (fd < 0)
		return false;
	status = to_ask ? stats_attach_to_ask(view, fd) : stats_attach(view, fd);
	close(fd);
	if (status)
		return false;
	if (view->pid == own_pid_of(pid) && view->start_time == stats_start_time(pid))
		return true;
	stats_detach(view);
	return false;
}

static int find_segment(int pid, struct stats_view *view, bool to_ask)
{
	char directory[64], path[sizeof(directory) + NAME_MAX + 2];
	bool found = false;
	struct dirent *entry;
	DIR *fds;

	snprintf(directory, sizeof(directory), "/proc/%d/fd", pid);
	fds = opendir(directory);
	if (!fds)
		return -errno;
	while (!found && (entry = readdir(fds))) {
		snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		found = is_segment_link(path) && attach_own(view, path, pid, to_ask);
	}
	closedir(fds);
	return found ? 0 : -ENOENT;
}

int scan_to_ask(int pid, struct stats_view *view)
{
	return find_segment(pid, view, true);
}

static bool show_process(int pid, void (*show)(int pid, const struct stats_view *view, void *arg), void *arg)
{
	struct stats_view view;

	if (find_segment(pid, &view, false) < 0)
		return false;
	show(pid, &view, arg);
	stats_detach(&view);
	return true;
}

int scan_processes(void (*show)(int pid, const struct stats_view *view, void *arg), void *arg)
{
	struct dirent *entry;
	int nr_shown = 0;
	DIR *proc;

	proc = opendir("/proc");
	if (!proc)
		return -errno;
	while ((entry = readdir(proc))) {
		char *end;
		long pid = strtol(entry->d_name, &end, 10);

		if (pid > 0 && pid <= INT_MAX && !*end && show_process((int)pid, show, arg))
			nr_shown++;
	}
	closedir(proc);
	return nr_shown;
}
