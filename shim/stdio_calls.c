/* SPDX-License-Identifier: MIT */
/*
 * stdio over a connection. Streams of libc do their own system calls, which no wrapper sees; so a connection that becomes
 * a stream stays on TCP. One that is on a ring already gets a stream whose reads and writes come back to our wrappers.
 * That one has no descriptor in libc's eyes, so fileno() is answered here. The road not taken: refusing.
 */
#include "shim/real.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"

struct stream {
	FILE *file;
	int fd;
	struct stream *next;
};

/* Streams over rings, few or none. */
static struct stream *_Atomic streams;
static _Atomic int streams_lock;

static void lock_streams(void)
{
	while (exchange(&streams_lock, 1))
		cpu_relax();
}

static void unlock_streams(void)
{
	store_release(&streams_lock, 0);
}

static ssize_t stream_read(void *cookie, char *buf, size_t len)
{
	return read(((struct stream *)cookie)->fd, buf, len);
}

static ssize_t stream_write(void *cookie, const char *buf, size_t len)
{
	ssize_t done = write(((struct stream *)cookie)->fd, buf, len);

	return done < 0 ? 0 : done; /* how a cookie says failure */
}

static int stream_seek(void *cookie, off64_t *pos, int whence)
{
	errno = ESPIPE;
	return -1;
}

static int stream_close(void *cookie)
{
	struct stream *stream = cookie, **at;
	struct stream *first;
	int result = close(stream->fd);

	lock_streams();
	first = load_relaxed(&streams);
	for (at = &first; *at != stream; at = &(*at)->next)
		;
	*at = stream->next;
	store_release(&streams, first);
	unlock_streams();
	free(stream);
	return result;
}

static FILE *open_stream(int fd, const char *mode)
{
	static const cookie_io_functions_t functions = { stream_read, stream_write, stream_seek, stream_close };
	struct stream *stream = malloc(sizeof(*stream));

	if (!stream)
		return NULL;
	stream->fd = fd;
	stream->file = fopencookie(stream, mode, functions);
	if (!stream->file) {
		free(stream);
		return NULL;
	}
	lock_streams();
	stream->next = load_relaxed(&streams);
	store_release(&streams, stream);
	unlock_streams();
	return stream->file;
}

EXPORT FILE *fdopen(int fd, const char *mode)
{
	if (!guard_ready() || fd_pin(fd, REASON_STDIO))
		return real_fdopen(fd, mode);
	return open_stream(fd, mode);
}

/* The descriptor of one of our streams, or -1. */
static int stream_fd(FILE *file)
{
	int fd = -1;

	lock_streams();
	for (struct stream *stream = load_relaxed(&streams); stream && fd < 0; stream = stream->next)
		if (stream->file == file)
			fd = stream->fd;
	unlock_streams();
	return fd;
}

EXPORT int fileno(FILE *file)
{
	int fd = unlikely(load_relaxed(&streams)) ? stream_fd(file) : -1;

	return fd >= 0 ? fd : real_fileno(file);
}

EXPORT int fileno_unlocked(FILE *file)
{
	int fd = unlikely(load_relaxed(&streams)) ? stream_fd(file) : -1;

	return fd >= 0 ? fd : real_fileno_unlocked(file);
}

/* The descriptor is about to be closed inside libc, where close() is not heard. */
static void stream_closing(FILE *file)
{
	int kept_errno = errno, fd;

	if (!guard_ready() || !file)
		return;
	fd = real_fileno(file);
	errno = kept_errno;
	if (fdtab_get(fd))
		fd_closing(fd);
}

EXPORT int fclose(FILE *file)
{
	stream_closing(file);
	return real_fclose(file);
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *file)
{
	stream_closing(file);
	return real_freopen(path, mode, file);
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *file)
{
	stream_closing(file);
	return real_freopen64(path, mode, file);
}

/* Is fd a connection on a ring, which libc must not write to by itself? */
static bool needs_us(int fd)
{
	return guard_ready() && !fd_pin(fd, REASON_STDIO);
}

static int print_to_ring(int fd, const char *format, va_list args)
{
	char *text;
	int len = vasprintf(&text, format, args), done = 0;

	if (len < 0)
		return -1;
	while (done < len) {
		ssize_t part = write(fd, text + done, (size_t)(len - done));

		if (part < 0) {
			done = -1;
			break;
		}
		done += (int)part;
	}
	free(text);
	return done;
}

EXPORT int vdprintf(int fd, const char *format, va_list args)
{
	return needs_us(fd) ? print_to_ring(fd, format, args) : real_vdprintf(fd, format, args);
}

int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
int __dprintf_chk(int fd, int flag, const char *format, ...);

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	return needs_us(fd) ? print_to_ring(fd, format, args) : real___vdprintf_chk(fd, flag, format, args);
}

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int result;

	va_start(args, format);
	result = vdprintf(fd, format, args);
	va_end(args);
	return result;
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int result;

	va_start(args, format);
	result = __vdprintf_chk(fd, flag, format, args);
	va_end(args);
	return result;
}
