/* SPDX-License-Identifier: MIT */
/*
 * See log.h. Standard error is not duplicated to be safe from the program's redirections: a hidden copy would keep a pipe
 * open that the program believes it has closed. Instead each message checks that number 2 still is the file it was.
 */
#include "shim/log.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "ringbuf/sys.h"
#include "shim/own_fd.h"
#include "shim/text.h"

static int log_fd = -1;
static struct {
	bool usable;
	dev_t dev;
	ino_t ino;
} err;

int log_begin(void)
{
	struct stat st;

	err.usable = sys_call2(SYS_fstat, 2, &st) == 0 && !S_ISSOCK(st.st_mode);
	if (err.usable) {
		err.dev = st.st_dev;
		err.ino = st.st_ino;
	}
	return 0;
}

int log_init(void)
{
	int fd;

	if (!options.log_path || options.log_level == LOG_LEVEL_OFF)
		return 0;
	fd = sys_openat(AT_FDCWD, options.log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
	if (fd >= 0)
		fd = own_fd_adopt(fd, &log_fd);
	if (fd < 0)
		log_error("the log %s cannot be opened (%m); logging to standard error", options.log_path, -fd);
	return 0;
}

static void write_line(const struct text *line)
{
	struct stat st;

	if (log_fd >= 0)
		(void)text_write(line, log_fd);
	else if (err.usable && sys_call2(SYS_fstat, 2, &st) == 0 && st.st_dev == err.dev && st.st_ino == err.ino)
		(void)text_write(line, 2);
}

void log_write(enum log_level level, const char *format, ...)
{
	static const char *const names[] = { "", "error", "warn", "info", "debug" };
	struct text_line line;
	va_list args;

	text_start(&line.text, line.bytes, sizeof(line.bytes));
	text_add(&line.text, "ringway[");
	text_add_number(&line.text, (uint64_t)sys_getpid(), 10);
	text_add(&line.text, "] ");
	text_add(&line.text, names[level]);
	text_add(&line.text, ": ");
	va_start(args, format);
	text_add_format(&line.text, format, args);
	va_end(args);
	text_end_line(&line.text);
	write_line(&line.text);
}
