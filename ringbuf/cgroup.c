/* SPDX-License-Identifier: MIT */
/* See cgroup.h. Nothing stays open: the files are looked up by name, and where that fails any more (a new root, a filter) no more is taken. */
#include "ringbuf/cgroup.h"

#include <fcntl.h>
#include <string.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"

#define SHARE 4	/* of the limit, for the rings of a process */
/* So much of the limit may be in use, by whomever, when an overflow ring is begun. */
#define IN_USE_MOST(limit) ((limit) / 4 * 3)
/* Overflow rings that were begun within this time may not be in the group's count yet. */
#define FRESH_NS INT64_C(100000000)
#define PATH_BYTES 512

static const struct version {
	const char *controller, *root, *limit, *usage;
	/* Of "memory.stat": what files have in memory besides, which the kernel takes back before it kills. Pages of memfds are not among them. */
	const char *cache[2];
} versions[] = {
	{ "", "/sys/fs/cgroup", "memory.max", "memory.current", { "inactive_file ", "active_file " } },
	{ "memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", { "total_inactive_file ", "total_active_file " } },
};

uint64_t cgroup_limit = UINT64_MAX;
static const struct version *version;
static char usage_path[PATH_BYTES], stat_path[PATH_BYTES];
static _Atomic uint64_t ring_bytes_taken;
static _Atomic int64_t fresh_since;
static _Atomic uint64_t fresh_bytes;

static ssize_t read_file(const char *path, char *text, size_t room)
{
	int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = sys_read(fd, text, room - 1);
	sys_close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n;
}

static uint64_t number_of(const char *at)
{
	uint64_t number = 0;

	for (; *at >= '0' && *at <= '9'; at++)
		number = number * 10 + (uint64_t)(*at - '0');
	return number;
}

/* UINT64_MAX: it has none, or says "max". */
static uint64_t read_number(const char *path)
{
	char text[32];

	if (read_file(path, text, sizeof(text)) <= 0 || *text < '0' || *text > '9')
		return UINT64_MAX;
	return number_of(text);
}

/* Line by line: the stack may be a handler's. */
static uint64_t read_cache(void)
{
	char line[64];
	uint64_t cache = 0;
	size_t len = 0;
	ssize_t n;
	int fd = sys_openat(AT_FDCWD, stat_path, O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return 0;
	while ((n = sys_read(fd, line + len, sizeof(line) - 1 - len)) > 0) {
		char *end;

		len += (size_t)n;
		line[len] = '\0';
		while ((end = strchr(line, '\n'))) {
			for (int i = 0; i < 2; i++)
				if (!strncmp(line, version->cache[i], strlen(version->cache[i])))
					cache += number_of(line + strlen(version->cache[i]));
			len -= (size_t)(end + 1 - line);
			memmove(line, end + 1, len + 1);
		}
		if (len == sizeof(line) - 1)
			break;
	}
	sys_close(fd);
	return cache;
}

static bool append(char *path, size_t *len, const char *piece, size_t piece_len)
{
	if (*len + piece_len >= PATH_BYTES)
		return false;
	memcpy(path + *len, piece, piece_len);
	*len += piece_len;
	path[*len] = '\0';
	return true;
}

/* Of one group. Version 1 says "none" by a number that no memory reaches. */
static void consider(const struct version *v, const char *group, size_t group_len)
{
	char path[PATH_BYTES];
	size_t len = 0, dir_len;
	uint64_t limit;

	if (!append(path, &len, v->root, strlen(v->root)) || !append(path, &len, group, group_len) || !append(path, &len, "/", 1))
		return;
	dir_len = len;
	if (!append(path, &len, v->limit, strlen(v->limit)))
		return;
	limit = read_number(path);
	if (limit >= cgroup_limit || limit > INT64_MAX / 2)
		return;
	len = dir_len;
	if (!append(path, &len, v->usage, strlen(v->usage)))
		return;
	memcpy(usage_path, path, len + 1);
	len = dir_len;
	stat_path[0] = '\0';
	if (append(path, &len, "memory.stat", strlen("memory.stat")))
		memcpy(stat_path, path, len + 1);
	version = v;
	cgroup_limit = limit;
}

static bool names(const char *controllers, size_t len, const char *wanted)
{
	size_t wanted_len = strlen(wanted);

	if (!wanted_len)
		return !len;
	for (size_t at = 0; at + wanted_len <= len; at++)
		if ((!at || controllers[at - 1] == ',') && !memcmp(controllers + at, wanted, wanted_len) &&
		    (at + wanted_len == len || controllers[at + wanted_len] == ','))
			return true;
	return false;
}

/* "4:memory:/a/b": the group and those around it. A container that sees its own group as the root may be told of another name. */
static void consider_line(const char *line, size_t len)
{
	const char *controllers = memchr(line, ':', len), *group;
	size_t group_len;

	if (!controllers++)
		return;
	group = memchr(controllers, ':', len - (size_t)(controllers - line));
	if (!group++)
		return;
	group_len = len - (size_t)(group - line);
	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		if (!names(controllers, (size_t)(group - 1 - controllers), versions[i].controller))
			continue;
		for (size_t at = group_len; at; at--)
			if (at == group_len || group[at] == '/')
				consider(&versions[i], group, at);
		consider(&versions[i], group, 0);
	}
}

int cgroup_init(void)
{
	char text[4096], *line = text, *end;

	if (read_file("/proc/self/cgroup", text, sizeof(text)) <= 0)
		return 0;
	for (; (end = strchr(line, '\n')); line = end + 1)
		consider_line(line, (size_t)(end - line));
	return 0;
}

bool cgroup_take(uint64_t ring_bytes)
{
	uint64_t taken = fetch_add(&ring_bytes_taken, ring_bytes);

	if (!cgroup_is_limited() || taken + ring_bytes <= cgroup_limit / SHARE)
		return true;
	cgroup_give(ring_bytes);
	return false;
}

void cgroup_give(uint64_t ring_bytes)
{
	fetch_sub(&ring_bytes_taken, ring_bytes);
}

static bool leaves_room(uint64_t in_use, uint64_t fresh)
{
	return in_use <= IN_USE_MOST(cgroup_limit) && fresh <= IN_USE_MOST(cgroup_limit) - in_use;
}

bool cgroup_may_overflow(uint64_t bytes, int64_t now_ns)
{
	uint64_t in_use, fresh, cache;

	if (!cgroup_is_limited())
		return true;
	if (now_ns - load_relaxed(&fresh_since) > FRESH_NS) {
		store_relaxed(&fresh_since, now_ns);
		store_relaxed(&fresh_bytes, 0);
	}
	fresh = load_relaxed(&fresh_bytes) + bytes;
	in_use = read_number(usage_path);
	if (!leaves_room(in_use, fresh)) {
		cache = read_cache();
		in_use -= cache < in_use ? cache : in_use;
		if (!leaves_room(in_use, fresh))
			return false;
	}
	fetch_add(&fresh_bytes, bytes);
	return true;
}
