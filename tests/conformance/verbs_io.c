/* SPDX-License-Identifier: MIT */
/* Steps that move bytes through one buffer, and stdio on a socket. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h>

#include "verbs.h"

static bool is_null(const char *text)
{
	return !strcmp(text, "null");
}

static size_t parse_len(const char *text)
{
	long len = is_null(text) ? 10 : parse_number(text);

	if (len < 0 || len > BUF_BYTES)
		bad_step("length out of range", text);
	return (size_t)len;
}

/* A pattern of `len` bytes for this descriptor; NULL when the script asks for a bad pointer. */
static const void *outgoing(struct actor *a, const char *fd_name, const char *len_text, size_t *len)
{
	static const struct name nameless;
	const struct name *n = fd_name[0] >= 'a' ? name_find(a, fd_name) : &nameless;

	*len = parse_len(len_text);
	if (is_null(len_text))
		return NULL;
	bytes_pattern(a, n, n->sent_pos, a->buf, *len);
	return a->buf;
}

static void sent(struct actor *a, const char *fd_name, ssize_t n)
{
	say_result(a, n);
	if (n > 0)
		name_find(a, fd_name)->sent_pos += (uint64_t)n;
}

static void *incoming(struct actor *a, const char *len_text, size_t *len)
{
	*len = parse_len(len_text);
	bytes_mark(a->buf, *len + 64);
	return is_null(len_text) ? NULL : a->buf;
}

static void received(struct actor *a, ssize_t n, size_t len, bool truncated)
{
	size_t filled = n < 0 || truncated ? 0 : (size_t)n < len ? (size_t)n : len;

	say_result(a, n);
	if (filled)
		say(a, " sum %08x", bytes_sum(BYTES_SUM_START, a->buf, filled));
	if (!bytes_marked(a->buf + filled, len + 64 - filled))
		say(a, " written-beyond");
}

void verb_send(struct actor *a, int argc, char **argv)
{
	size_t len;
	const void *from = outgoing(a, argv[1], argv[2], &len);
	int flags = (int)parse_rest(msg_words, argc, argv, 3);

	sent(a, argv[1], CALL(send(fd_of(a, argv[1]), from, len, flags)));
}

void verb_sendto(struct actor *a, int argc, char **argv)
{
	size_t len;
	const void *from = outgoing(a, argv[1], argv[2], &len);
	int flags = (int)parse_rest(msg_words, argc, argv, 3);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	sent(a, argv[1], CALL(sendto(fd_of(a, argv[1]), from, len, flags, (struct sockaddr *)&to, sizeof(to))));
}

void verb_write(struct actor *a, int argc, char **argv)
{
	size_t len;
	const void *from = outgoing(a, argv[1], argv[2], &len);

	sent(a, argv[1], CALL(write(fd_of(a, argv[1]), from, len)));
}

void verb_recv(struct actor *a, int argc, char **argv)
{
	size_t len;
	void *to = incoming(a, argv[2], &len);
	int flags = (int)parse_rest(msg_words, argc, argv, 3);

	received(a, CALL(recv(fd_of(a, argv[1]), to, len, flags)), len, flags & MSG_TRUNC);
}

void verb_recvfrom(struct actor *a, int argc, char **argv)
{
	size_t len;
	void *to = incoming(a, argv[2], &len);
	int flags = (int)parse_rest(msg_words, argc, argv, 3);
	struct sockaddr_storage from = {0};
	socklen_t from_len = sizeof(from);

	received(a, CALL(recvfrom(fd_of(a, argv[1]), to, len, flags, (struct sockaddr *)&from, &from_len)), len, false);
	say(a, " from-len %u", from_len);
}

void verb_read(struct actor *a, int argc, char **argv)
{
	size_t len;
	void *to = incoming(a, argv[2], &len);

	received(a, CALL(read(fd_of(a, argv[1]), to, len)), len, false);
}

/* How many calls it takes is not the script's business, only the bytes are. */
/* The kernel tells neighbours in one message or in several, as it likes: told here in one. */
struct completions {
	uint32_t first, last, code;
	bool any;
};

static void say_completions(struct actor *a, const struct completions *done)
{
	if (done->any)
		say(a, " %u-%u%s", done->first, done->last, done->code & SO_EE_CODE_ZEROCOPY_COPIED ? " copied" : "");
}

static void join_completion(struct actor *a, struct completions *done, const struct sock_extended_err *e)
{
	bool joins = done->any && e->ee_info == done->last + 1 && e->ee_code == done->code;

	if (!joins) {
		say_completions(a, done);
		*done = (struct completions){.first = e->ee_info, .code = e->ee_code, .any = true};
	}
	done->last = e->ee_data;
}

void verb_completions(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);
	struct completions done = {0};
	char control[256] __attribute__((aligned(8)));

	for (;;) {
		struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};
		ssize_t n = CALL(recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT));

		if (n < 0) {
			say_completions(a, &done);
			say(a, " ");
			say_result(a, n);
			return;
		}
		for (struct cmsghdr *cm = CMSG_FIRSTHDR(&msg); cm; cm = CMSG_NXTHDR(&msg, cm)) {
			const struct sock_extended_err *e = (const void *)CMSG_DATA(cm);

			if (e->ee_origin == SO_EE_ORIGIN_ZEROCOPY && e->ee_errno == 0)
				join_completion(a, &done, e);
			else
				say(a, " other %d %d", cm->cmsg_level, cm->cmsg_type);
		}
	}
}

void verb_recvn(struct actor *a, int argc, char **argv)
{
	size_t want = (size_t)parse_number(argv[2]), got = 0;
	uint32_t sum = BYTES_SUM_START;
	int fd = fd_of(a, argv[1]);
	ssize_t n = 1;

	while (got < want && n > 0) {
		n = recv(fd, a->buf, want - got < BUF_BYTES ? want - got : BUF_BYTES, 0);
		if (n > 0) {
			sum = bytes_sum(sum, a->buf, (size_t)n);
			got += (size_t)n;
		}
	}
	say(a, "= %zu sum %08x%s", got, sum, n > 0 ? "" : n == 0 ? " end" : strerrorname_np(errno));
}

void verb_sendn(struct actor *a, int argc, char **argv)
{
	size_t want = (size_t)parse_number(argv[2]), done = 0;
	struct name *name = name_find(a, argv[1]);

	while (done < want) {
		size_t len = want - done < BUF_BYTES ? want - done : BUF_BYTES;
		ssize_t n;

		bytes_pattern(a, name, name->sent_pos, a->buf, len);
		n = send(name->fd, a->buf, len, MSG_NOSIGNAL);
		if (n < 0) {
			say(a, "= %zu %s", done, strerrorname_np(errno));
			return;
		}
		done += (size_t)n;
		name->sent_pos += (uint64_t)n;
	}
	say(a, "= %zu", done);
}

/* Streams are kept by the number of their name; a process has few. */
static FILE *streams[MAX_NAMES];

static FILE **stream_of(struct actor *a, const char *text)
{
	return &streams[name_find(a, text) - a->names->of];
}

void verb_fdopen(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);
	FILE *f = CALL(fdopen(fd, argv[2]));

	name_set(a, argv[3], fd);
	*stream_of(a, argv[3]) = f;
	say_result(a, f ? 0 : -1);
}

void verb_fputs(struct actor *a, int argc, char **argv)
{
	FILE *f = *stream_of(a, argv[1]);
	int result = fputs(argv[2], f);

	if (result >= 0)
		result = fputs("\n", f) < 0 || fflush(f) ? -1 : 0;
	say(a, "= %d", result);
}

void verb_fgets(struct actor *a, int argc, char **argv)
{
	FILE *f = *stream_of(a, argv[1]);
	char line[200];

	if (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		say(a, "= \"%s\"", line);
	} else {
		say(a, "= nothing%s%s", feof(f) ? " end" : "", ferror(f) ? " error" : "");
	}
}

void verb_fclose(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(fclose(*stream_of(a, argv[1]))) ? -1 : 0);
}
