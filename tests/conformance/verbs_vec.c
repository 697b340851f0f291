/* SPDX-License-Identifier: MIT */
/* Steps with several buffers a call, and the ones that move bytes between descriptors. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "verbs.h"

enum { MAX_IOV = 32, MAX_MSGS = 8, SPACING = 64 };

static const struct word splice_words[] = {{"nonblock", SPLICE_F_NONBLOCK}, {"more", SPLICE_F_MORE},
					   {"move", SPLICE_F_MOVE}, {NULL, 0}};

/* Buffers of the lengths in the shape, one behind the other with a gap between, from buf + from on. */
struct shape {
	struct iovec iov[MAX_IOV];
	int nr;
	size_t bytes, span;
};

static struct shape parse_shape(struct actor *a, const char *text, size_t from)
{
	struct shape s = {0};
	size_t at = from;
	char copy[512], *rest = NULL;

	if (strlen(text) >= sizeof(copy))
		bad_step("shape too long", text);
	strcpy(copy, text);
	for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
		size_t len = (size_t)parse_number(one);

		if (s.nr == MAX_IOV || at + len + SPACING > BUF_BYTES)
			bad_step("shape too large", text);
		s.iov[s.nr++] = (struct iovec){.iov_base = a->buf + at, .iov_len = len};
		s.bytes += len;
		at += len + SPACING;
	}
	s.span = at - from;
	return s;
}

static void shape_fill(struct actor *a, const struct name *n, const struct shape *s, uint64_t pos)
{
	for (int i = 0; i < s->nr; i++) {
		bytes_pattern(a, n, pos, s->iov[i].iov_base, s->iov[i].iov_len);
		pos += s->iov[i].iov_len;
	}
}

/* The sum of the first n bytes in the order of the buffers; whether anything else was written. */
static void say_received(struct actor *a, const struct shape *s, ssize_t n)
{
	size_t left = n < 0 ? 0 : (size_t)n;
	uint32_t sum = BYTES_SUM_START;
	bool beyond = false;

	for (int i = 0; i < s->nr; i++) {
		unsigned char *base = s->iov[i].iov_base;
		size_t here = left < s->iov[i].iov_len ? left : s->iov[i].iov_len;

		sum = bytes_sum(sum, base, here);
		beyond |= !bytes_marked(base + here, s->iov[i].iov_len - here + SPACING);
		left -= here;
	}
	if (n > 0)
		say(a, " sum %08x", sum);
	if (beyond)
		say(a, " written-beyond");
}

static struct shape shape_out(struct actor *a, const char *fd_name, const char *text)
{
	struct shape s = {0};
	struct name *n;

	if (!strcmp(text, "null")) {
		s.nr = 1;
		s.iov[0].iov_len = 10;
		return s;
	}
	s = parse_shape(a, text, 0);
	if (*fd_name >= 'a') {
		n = name_find(a, fd_name);
		shape_fill(a, n, &s, n->sent_pos);
	}
	return s;
}

static struct shape shape_in(struct actor *a, const char *text)
{
	struct shape s = {0};

	if (!strcmp(text, "null")) {
		s.nr = 1;
		s.iov[0].iov_len = 10;
		return s;
	}
	s = parse_shape(a, text, 0);
	bytes_mark(a->buf, s.span);
	return s;
}

static void say_sent(struct actor *a, const char *fd_name, ssize_t n)
{
	say_result(a, n);
	if (n > 0)
		name_find(a, fd_name)->sent_pos += (uint64_t)n;
}

static void say_taken(struct actor *a, const struct shape *s, ssize_t n)
{
	say_result(a, n);
	if (s->span)
		say_received(a, s, n);
}

void verb_writev(struct actor *a, int argc, char **argv)
{
	struct shape s = shape_out(a, argv[1], argv[2]);

	say_sent(a, argv[1], CALL(writev(fd_of(a, argv[1]), s.iov, s.nr)));
}

void verb_readv(struct actor *a, int argc, char **argv)
{
	struct shape s = shape_in(a, argv[2]);

	say_taken(a, &s, CALL(readv(fd_of(a, argv[1]), s.iov, s.nr)));
}

void verb_pwritev2(struct actor *a, int argc, char **argv)
{
	struct shape s = shape_out(a, argv[1], argv[2]);

	say_sent(a, argv[1], CALL(pwritev2(fd_of(a, argv[1]), s.iov, s.nr, -1, 0)));
}

void verb_preadv2(struct actor *a, int argc, char **argv)
{
	struct shape s = shape_in(a, argv[2]);

	say_taken(a, &s, CALL(preadv2(fd_of(a, argv[1]), s.iov, s.nr, -1, 0)));
}

void verb_sendmsg(struct actor *a, int argc, char **argv)
{
	int flags = (int)parse_rest(msg_words, argc, argv, 3);
	struct shape s = shape_out(a, argv[1], argv[2]);
	struct msghdr msg = {.msg_iov = s.iov, .msg_iovlen = (size_t)s.nr};

	say_sent(a, argv[1], CALL(sendmsg(fd_of(a, argv[1]), &msg, flags)));
}

void verb_recvmsg(struct actor *a, int argc, char **argv)
{
	int flags = (int)parse_rest(msg_words, argc, argv, 3);
	struct shape s = shape_in(a, argv[2]);
	struct sockaddr_storage from;
	char control[128] __attribute__((aligned(8)));
	struct msghdr msg = {.msg_iov = s.iov, .msg_iovlen = (size_t)s.nr, .msg_name = &from, .msg_namelen = sizeof(from),
			     .msg_control = control, .msg_controllen = sizeof(control), .msg_flags = 0x5a5a};
	ssize_t n = CALL(recvmsg(fd_of(a, argv[1]), &msg, flags));

	if (flags & MSG_TRUNC)
		say_result(a, n);
	else
		say_taken(a, &s, n);
	if (n < 0)
		return;
	say(a, " name %u control %zu ", msg.msg_namelen, msg.msg_controllen);
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(&msg); cm; cm = CMSG_NXTHDR(&msg, cm))
		if (cm->cmsg_level == IPPROTO_TCP && cm->cmsg_type == TCP_CM_INQ)
			say(a, "inq %d ", *(int *)CMSG_DATA(cm));
		else
			say(a, "%d/%d of %zu ", cm->cmsg_level, cm->cmsg_type, cm->cmsg_len);
	say(a, "flags ");
	say_words(a, msg_words, (unsigned int)msg.msg_flags);
}

static int parse_count(const char *text)
{
	long count = parse_number(text);

	if (count < 0 || count > MAX_MSGS)
		bad_step("too many messages", text);
	return (int)count;
}

/* SHAPE or SHAPE/null, where the first piece of the last message is at a place where nothing is. */
static void lay_out(struct actor *a, const char *text, int count, struct shape *shapes, struct mmsghdr *msgs)
{
	char copy[512], *hole;
	size_t at = 0;

	if (strlen(text) >= sizeof(copy))
		bad_step("shape too long", text);
	hole = strchr(strcpy(copy, text), '/');
	if (hole)
		*hole = 0;
	for (int i = 0; i < count; i++) {
		shapes[i] = parse_shape(a, copy, at);
		at += shapes[i].span;
		msgs[i].msg_hdr.msg_iov = shapes[i].iov;
		msgs[i].msg_hdr.msg_iovlen = (size_t)shapes[i].nr;
	}
	bytes_mark(a->buf, at);
	if (hole && count)
		shapes[count - 1].iov[0].iov_base = NULL;
}

void verb_sendmmsg(struct actor *a, int argc, char **argv)
{
	struct name *name = name_find(a, argv[1]);
	int count = parse_count(argv[2]), flags = (int)parse_rest(msg_words, argc, argv, 4), sent;
	struct shape shapes[MAX_MSGS];
	struct mmsghdr msgs[MAX_MSGS] = {0};
	uint64_t pos = name->sent_pos;

	lay_out(a, argv[3], count, shapes, msgs);
	for (int i = 0; i < count; i++) {
		if (shapes[i].iov[0].iov_base)
			shape_fill(a, name, &shapes[i], pos);
		pos += shapes[i].bytes;
	}
	sent = CALL(sendmmsg(name->fd, msgs, (unsigned int)count, flags));
	say_result(a, sent);
	for (int i = 0; i < sent; i++) {
		say(a, " %u", msgs[i].msg_len);
		name->sent_pos += msgs[i].msg_len;
	}
}

void verb_recvmmsg(struct actor *a, int argc, char **argv)
{
	int count = parse_count(argv[2]), flags = (int)parse_rest(msg_words, argc, argv, 4), got;
	struct shape shapes[MAX_MSGS];
	struct mmsghdr msgs[MAX_MSGS] = {0};

	lay_out(a, argv[3], count, shapes, msgs);
	got = CALL(recvmmsg(fd_of(a, argv[1]), msgs, (unsigned int)count, flags, NULL));
	say_result(a, got);
	for (int i = 0; i < got; i++) {
		say(a, " [%u", msgs[i].msg_len);
		say_received(a, &shapes[i], msgs[i].msg_len);
		say(a, "]");
	}
}

void verb_sendfile(struct actor *a, int argc, char **argv)
{
	bool current = !strcmp(argv[3], "cur");
	off_t offset = current ? 0 : parse_number(argv[3]);
	int file = fd_of(a, argv[2]);
	ssize_t n = CALL(sendfile(fd_of(a, argv[1]), file, current ? NULL : &offset, (size_t)parse_number(argv[4])));

	say_result(a, n);
	say(a, " offset %ld file %ld", current ? -1L : (long)offset, (long)lseek(file, 0, SEEK_CUR));
}

void verb_splice(struct actor *a, int argc, char **argv)
{
	unsigned int flags = (unsigned int)parse_rest(splice_words, argc, argv, 4);

	say_result(a, CALL(splice(fd_of(a, argv[1]), NULL, fd_of(a, argv[2]), NULL, (size_t)parse_number(argv[3]), flags)));
}

void verb_tee(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(tee(fd_of(a, argv[1]), fd_of(a, argv[2]), (size_t)parse_number(argv[3]), 0)));
}

void verb_pread(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(pread(fd_of(a, argv[1]), a->buf, (size_t)parse_number(argv[2]), 0)));
}

void verb_lseek(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(lseek(fd_of(a, argv[1]), parse_number(argv[2]), SEEK_SET)));
}
