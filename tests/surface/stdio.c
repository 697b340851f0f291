/* SPDX-License-Identifier: MIT */
/* stdio over sockets: right after they are made, and later. */
#include "probe.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>

/* Asks all the time what number a stream has, opens others and closes them, until told to end. */
static _Atomic int asked_enough;

static void *asker(void *arg)
{
	int number = fileno(arg), connected, accepted;
	FILE *other;

	while (!atomic_load(&asked_enough)) {
		for (int i = 0; i < 100000; i++)
			MUST(fileno(arg) == number);
		accepted = tcp_pair(&connected);
		ping_pong(accepted, connected, 3);
		other = fdopen(accepted, "r+");
		MUST(other && fileno(other) == accepted && fclose(other) == 0 && close(connected) == 0);
	}
	return NULL;
}

/* A child has one thread, and nothing that the others were at may stand in its way. */
static void fork_meanwhile(void)
{
	int connected, accepted = tcp_pair(&connected), number;
	pthread_t threads[2];
	FILE *stream;
	pid_t pid;

	ping_pong(accepted, connected, 40);
	stream = fdopen(accepted, "r+");
	MUST(stream);
	number = fileno(stream);
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&threads[i], NULL, asker, stream) == 0);
	for (int round = 0; round < 60; round++) {
		pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			alarm(5);
			MUST(fileno(stream) == number);
			_exit(3);
		}
		MUST(wait_for(pid) == 3);
	}
	atomic_store(&asked_enough, 1);
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	SAY("forked\n");
}

static void lines(FILE *in, FILE *out, const char *when)
{
	char line[64];

	for (int i = 0; i < 30; i++) {
		MUST(fprintf(out, "line %d\n", i) > 0 && fflush(out) == 0);
		MUST(fgets(line, sizeof(line), in));
		MUST(atoi(line + 5) == i);
	}
	SAY("%s ok\n", when);
}

/* Libc writes it by itself, a line a frame. */
static void trace(int fd, FILE *in)
{
	char line[1024];
	void *frames[8];
	int nr = backtrace(frames, 8);

	MUST(nr > 0);
	backtrace_symbols_fd(frames, nr, fd);
	for (int i = 0; i < nr; i++)
		MUST(fgets(line, sizeof(line), in) && strstr(line, "[0x"));
}

/* The stream is there before there is a connection, or before another one than there was. */
static void early(bool again)
{
	static const struct sockaddr none = { .sa_family = AF_UNSPEC };
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0), connected = socket(AF_INET, SOCK_STREAM, 0), accepted;
	FILE *stream = fdopen(connected, "r+");
	char line[32];

	MUST(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	MUST(stream && connect(connected, (struct sockaddr *)&addr, len) == 0);
	accepted = accept(listener, NULL, NULL);
	if (again) {
		MUST(connect(connected, &none, sizeof(none)) == 0 && close(accepted) == 0);
		MUST(connect(connected, (struct sockaddr *)&addr, len) == 0);
		accepted = accept(listener, NULL, NULL);
	}
	ping_pong(accepted, connected, 30);
	MUST(send(accepted, "line\n", 5, 0) == 5);
	MUST(fgets(line, sizeof(line), stream) && strcmp(line, "line\n") == 0);
	MUST(fputs("answer\n", stream) >= 0 && fclose(stream) == 0);
	MUST(recv(accepted, line, sizeof(line), 0) == 7 && memcmp(line, "answer\n", 7) == 0);
	SAY("end %s\n", outcome(recv(accepted, line, sizeof(line), 0)));
}

/* What stands at the number of a stream is read and written by it. */
static void in_place(void)
{
	int connected, accepted = tcp_pair(&connected);
	FILE *stream = fopen("/dev/null", "r+");
	int number = fileno(stream);
	char line[32];

	ping_pong(accepted, connected, 30);
	MUST(dup2(connected, number) == number && close(connected) == 0);
	MUST(send(accepted, "line\n", 5, 0) == 5);
	/* Who sends brings what was on its way. */
	MUST(recv(accepted, line, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	MUST(fgets(line, sizeof(line), stream) && strcmp(line, "line\n") == 0);
	(void)fseek(stream, 0, SEEK_CUR);
	MUST(fputs("answer\n", stream) >= 0 && fflush(stream) == 0);
	MUST(recv(accepted, line, sizeof(line), 0) == 7 && memcmp(line, "answer\n", 7) == 0);
	MUST(fclose(stream) == 0);
	SAY("end %s\n", outcome(recv(accepted, line, sizeof(line), 0)));
}

int main(int argc, char **argv)
{
	int connected, accepted, third;
	FILE *in, *out;
	char byte;

	if (argc > 1 && strcmp(argv[1], "fork") == 0)
		return fork_meanwhile(), 0;
	if (argc > 1 && (strcmp(argv[1], "early") == 0 || strcmp(argv[1], "again") == 0))
		return early(strcmp(argv[1], "again") == 0), 0;
	if (argc > 1 && strcmp(argv[1], "in-place") == 0)
		return in_place(), 0;
	accepted = tcp_pair(&connected);
	if (argc > 1)
		ping_pong(accepted, connected, 40);
	in = fdopen(accepted, "r+");
	out = fdopen(connected, "w");
	MUST(in && out);
	SAY("same numbers %d %d\n", fileno(in) == accepted, fileno(out) == connected);
	lines(in, out, "fdopen");
	SAY("seek %s\n", outcome(fseek(in, 0, SEEK_SET)));
	MUST(dprintf(connected, "%s %d\n", "formatted", 7) == 12);
	MUST(fgets((char[64]){ 0 }, 64, in));
	trace(connected, in);
	MUST(fputs("back\n", in) > 0 && fflush(in) == 0);
	MUST(read(connected, (char[8]){ 0 }, 8) == 5);
	SAY("fclose %d\n", fclose(out));
	SAY("end %d %d\n", fgetc(in), feof(in) != 0);
	fclose(in);

	/* The numbers that libc closed by itself are free, and what gets them next is a file. */
	in = fopen("/dev/null", "r+");
	MUST(fileno(in) <= accepted || fileno(in) <= connected);
	MUST(write(fileno(in), "x", 1) == 1 && read(fileno(in), &byte, 1) == 0);
	fclose(in);

	accepted = tcp_pair(&connected);
	if (argc > 1)
		ping_pong(accepted, connected, 40);
	third = dup(1);
	if (argc <= 1) {
		MUST(dup2(connected, 1) == 1);
		puts("printed into the socket");
		fflush(stdout);
		MUST(dup2(third, 1) == 1);
		MUST(read(accepted, &byte, 1) == 1);
		SAY("first byte %c\n", byte);
	}
	return 0;
}
