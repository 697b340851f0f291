/* SPDX-License-Identifier: MIT */
/*
 * An actor is one thread that obeys a director: it reads one step at a time from its channel (a unix SEQPACKET
 * socket, so that the channel itself is never a TCP connection), carries it out with the ordinary libc call, and
 * answers with what the call returned. Nothing here knows Ringway: the program must run the same without it.
 */
#ifndef CONFORM_ACTOR_H
#define CONFORM_ACTOR_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { MAX_NAMES = 192, MAX_ARGS = 40, MAX_CHANNELS = 16, BUF_BYTES = 1 << 20, ERRNO_CANARY = 4000 };

/* What a script calls its descriptors. Threads of one actor share it, a forked child has its copy. */
struct names {
	int nr;
	struct name {
		char text[16];
		int fd;
		uint64_t sent_pos; /* how far into its pattern the next send begins */
	} of[MAX_NAMES];
};

struct actor {
	char name[12];
	int channel;
	uint32_t seed;       /* of the pattern that this actor sends */
	struct names *names;
	unsigned char *buf;  /* BUF_BYTES, and a guard behind */
	char reply[8192];
	size_t reply_len;
};

typedef void verb_fn(struct actor *a, int argc, char **argv);

/* conform.c */
extern char run_family; /* '4', '6' or 'm': connectors are IPv4, listeners IPv6 */
struct actor *actor_new(const char *name, int channel, struct names *names);
void actor_serve(struct actor *a);
void actor_run(struct actor *a, int argc, char **argv);
int channel_of(const char *name);
void say(struct actor *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_hidden(struct actor *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "= value", or "= -1 ENAME"; also tells when a call that succeeded touched errno (see CALL). */
void say_result(struct actor *a, long result);

/* Every call under test is made through this, so that errno's fate is part of the trace. */
#define CALL(expression) (errno = ERRNO_CANARY, (expression))

/* args.c: every parser ends the process with a message on bad input, since that is a fault of the script */
struct word {
	const char *text;
	long value;
};
void bad_step(const char *why, const char *what) __attribute__((noreturn));
long parse_number(const char *text);
/* "in,out" by the table; the table ends with a NULL text. */
long parse_words(const struct word *table, char *list);
long parse_word(const struct word *table, const char *text);
/* The names in `value`, joined by commas; what has no name follows in hexadecimal. */
void say_words(struct actor *a, const struct word *table, unsigned long value);
int parse_signal(const char *text);
/* The last arguments as or-ed words. */
long parse_rest(const struct word *table, int argc, char **argv, int from);
extern const struct word msg_words[];

/* names.c */
struct name *name_find(struct actor *a, const char *text); /* ends the process when there is none */
struct name *name_set(struct actor *a, const char *text, int fd);
int fd_of(struct actor *a, const char *text); /* a name, or a plain number for descriptors nobody has */

/* bytes.c */
void bytes_pattern(const struct actor *a, const struct name *n, uint64_t from_pos, unsigned char *to, size_t len);
uint32_t bytes_sum(uint32_t sum, const unsigned char *bytes, size_t len);
enum { BYTES_SUM_START = 0x811c9dc5u };
void bytes_mark(unsigned char *buf, size_t len);                 /* before a receive */
bool bytes_marked(const unsigned char *buf, size_t len);         /* nobody wrote there */

#endif
