/* SPDX-License-Identifier: MIT */
/*
 * How the double's device is to behave: words in VERBS_DOUBLE, separated by commas, and one letter in a file that a test may change while
 * programs run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>

#include "double.h"
#include "ringbuf/sys.h"

struct double_settings settings;
void (*device_has_gone)(void);
static _Atomic uint32_t removed_here;

void misuse(const char *what)
{
	char text[256] = "verbs double: misuse: ";

	strncat(text, what, sizeof(text) - strlen(text) - 2);
	strcat(text, "\n");
	(void)sys_call3(SYS_write, 2, text, strlen(text));
}

int control_watch(void)
{
	int fd;

	if (!settings.control)
		return -1;
	fd = hide_fd((int)sys_call1(SYS_inotify_init1, IN_CLOEXEC | IN_NONBLOCK));
	if (fd >= 0)
		(void)sys_call3(SYS_inotify_add_watch, fd, settings.control_path, IN_MODIFY);
	return fd;
}

static void open_control(const char *path)
{
	int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	long memory = fd < 0 ? fd : sys_mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	if (fd >= 0)
		sys_close(fd);
	if (sys_failed(memory)) {
		misuse("the control file cannot be mapped");
		return;
	}
	settings.control = (const volatile char *)memory;
	snprintf(settings.control_path, sizeof(settings.control_path), "%s", path);
}

static void read_word(const char *word, size_t len)
{
	static const struct {
		const char *name;
		uint64_t *value;
	} numbers[] = {
		{ "memlock=", &settings.memlock },
		{ "fail-post=", &settings.fail_post },
		{ "remove-at=", &settings.remove_at },
		{ "lose-at=", &settings.lose_at },
		{ "forget-at=", &settings.forget_at },
		{ "rnr-at=", &settings.rnr_at },
		{ "spoil=", &settings.spoil },
		{ "cut=", &settings.cut },
		{ "timeout-ms=", &settings.timeout_ms },
		{ "late=", &settings.late },
		{ "cm-delay-ms=", &settings.cm_delay_ms },
		{ "cm-retry-ms=", &settings.cm_retry_ms },
	};
	char text[256];

	if (len >= sizeof(text))
		return;
	memcpy(text, word, len);
	text[len] = '\0';
	if (!strcmp(text, "no-device")) {
		settings.no_device = true;
	} else if (!strcmp(text, "no-route")) {
		settings.no_route = true;
	} else if (!strcmp(text, "nonce")) {
		settings.nonce = true;
	} else if (!strcmp(text, "iwarp")) {
		settings.iwarp = true;
	} else if (!strncmp(text, "only=", 5)) {
		snprintf(settings.only, sizeof(settings.only), "%s", text + 5);
	} else if (!strncmp(text, "room=", 5)) {
		if (strlen(text + 5) >= sizeof(settings.room))
			misuse("the room's name is too long");
		else
			strcpy(settings.room, text + 5);
	} else if (!strncmp(text, "qps=", 4)) {
		settings.max_qps = (uint32_t)strtoul(text + 4, NULL, 0);
	} else if (!strncmp(text, "inline=", 7)) {
		settings.max_inline = (uint32_t)strtoul(text + 7, NULL, 0);
	} else if (!strncmp(text, "control=", 8)) {
		open_control(text + 8);
	} else {
		for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
			if (strncmp(text, numbers[i].name, strlen(numbers[i].name)))
				continue;
			*numbers[i].value = strtoull(text + strlen(numbers[i].name), NULL, 0);
			return;
		}
		misuse("unknown word in VERBS_DOUBLE");
	}
}

void settings_read(void)
{
	const char *text = getenv("VERBS_DOUBLE");

	memset(&settings, 0, sizeof(settings));
	settings.memlock = UINT64_MAX;
	settings.spoil = UINT64_MAX;
	settings.cut = UINT64_MAX;
	settings.cm_retry_ms = CM_RETRY_MS;
	settings.max_qps = QPS_MAX;
	settings.max_inline = INLINE_MAX;
	store_relaxed(&removed_here, 0);
	device_has_gone = NULL;
	while (text && *text) {
		size_t len = strcspn(text, ",");

		if (len)
			read_word(text, len);
		text += len + (text[len] == ',');
	}
	if (settings.max_qps > QPS_MAX)
		settings.max_qps = QPS_MAX;
	if (settings.max_inline > INLINE_MAX)
		settings.max_inline = INLINE_MAX;
}

bool path_is_lost(void)
{
	return (settings.lose_at && load_relaxed(&settings.posts) >= settings.lose_at) || (settings.control && *settings.control == 'l');
}

bool receives_are_lost(void)
{
	return settings.rnr_at && load_relaxed(&settings.posts) >= settings.rnr_at;
}

bool device_is_removed(void)
{
	return load_relaxed(&removed_here) || (settings.control && *settings.control == 'r');
}

void device_remove(void)
{
	store_relaxed(&removed_here, 1);
	if (device_has_gone)
		device_has_gone();
}
