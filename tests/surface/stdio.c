/* SPDX-License-Identifier: MIT */
/* stdio over sockets: right after they are made, and later. */
#include "probe.h"

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

int main(int argc, char **argv)
{
	int connected, accepted = tcp_pair(&connected), third;
	FILE *in, *out;
	char byte;

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
