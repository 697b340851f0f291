/* SPDX-License-Identifier: MIT */
/*
 * A program accepts a connection, and a plug-in serves it: loaded as most are, with its own libc's calls in front of all others (RTLD_DEEPBIND), or into a
 * namespace of its own (dlmopen); before the connection is busy ("early") or after. It is found by the program's own search path.
 */
#include "probe.h"

#include <dlfcn.h>

enum { BEFORE = 200, SERVED = 300 };

static void ask(int fd)
{
	char out[8], in[8];

	for (int i = 0; i < BEFORE + SERVED; i++) {
		memset(out, i, sizeof(out));
		MUST(send(fd, out, sizeof(out), 0) == sizeof(out));
		MUST(recv(fd, in, sizeof(in), MSG_WAITALL) == sizeof(in) && !memcmp(in, out, sizeof(in)));
	}
}

static void *load(const char *how)
{
	void *plugin;

	if (!strcmp(how, "apart"))
		plugin = dlmopen(LM_ID_NEWLM, "libserves.so", RTLD_NOW);
	else
		plugin = dlopen("libserves.so", RTLD_NOW | (!strcmp(how, "deep") ? RTLD_DEEPBIND : 0));
	if (!plugin)
		SAY("%s\n", dlerror());
	MUST(plugin);
	return plugin;
}

int main(int argc, char **argv)
{
	int early = argc > 2, a, b = tcp_pair(&a), (*serve)(int, int);
	void *plugin = NULL;
	char bytes[8];
	pid_t child = fork();

	MUST(child >= 0);
	close(child ? a : b);
	if (!child) {
		ask(a);
		exit(0);
	}
	if (early)
		plugin = load(argv[1]);
	for (int i = 0; i < BEFORE; i++) {
		MUST(recv(b, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
		MUST(send(b, bytes, sizeof(bytes), 0) == sizeof(bytes));
	}
	/* A request that is there, and unread. */
	MUST(recv(b, bytes, 1, MSG_PEEK) == 1);
	if (!plugin)
		plugin = load(argv[1]);
	*(void **)&serve = dlsym(plugin, "serve");
	MUST(serve);
	SAY("%d\n", serve(b, SERVED));
	return wait_for(child);
}
