/* SPDX-License-Identifier: MIT */
/* Ends in every way, after having moved a known number of bytes. */
#include "probe.h"

#include <sys/resource.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	const char *how = argv[1];
	int a, b;

	if (strcmp(how, "none") == 0)
		return 0;
	if (argc > 2) {
		/* What programs do to show a title: write over arguments and environment. */
		extern char **environ;
		char *end = argv[0];

		for (char **entry = environ; *entry; entry++)
			end = *entry + strlen(*entry);
		memset(argv[1] + strlen(argv[1]) + 1, 'T', (size_t)(end - argv[1]) - strlen(argv[1]) - 1);
		environ = (char *[]){ NULL };
	}
	a = tcp_pair(&b);
	ping_pong(a, b, 100); /* "message N": 990 bytes each way */
	if (strcmp(how, "no-file-size") == 0) {
		/* As sandboxes do: a write to a file is answered with a signal. */
		MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, 0 }) == 0);
		exit(0);
	}
	if (strcmp(how, "exit") == 0)
		exit(0);
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	if (strcmp(how, "_Exit") == 0)
		_Exit(0);
	if (strcmp(how, "quick_exit") == 0)
		quick_exit(0);
	if (strcmp(how, "exit_group") == 0)
		syscall(SYS_exit_group, 0);
	if (strcmp(how, "exec") == 0)
		execl("/bin/true", "true", (char *)NULL);
	if (strcmp(how, "failed-exec") == 0) {
		execl("/nonexistent", "x", (char *)NULL);
		return 0;
	}
	if (strcmp(how, "closed") == 0) {
		close(a);
		close(b);
		return 0;
	}
	if (strcmp(how, "fork") == 0) {
		pid_t pid = fork();

		if (pid == 0) {
			ping_pong(a, b, 10); /* 90 bytes each way */
			_exit(0);
		}
		return wait_for(pid);
	}
	if (strcmp(how, "serving-child") == 0) {
		int gone[2];
		pid_t pid;

		MUST(pipe(gone) == 0);
		pid = fork();
		if (pid == 0) {
			MUST(read(gone[0], &(char){ 0 }, 1) == 1);
			ping_pong(a, b, 10);
			exit(0);
		}
		close(a);
		close(b);
		MUST(write(gone[1], "", 1) == 1);
		return wait_for(pid);
	}
	if (strcmp(how, "idle-child") == 0) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		return wait_for(pid);
	}
	return 5;
}
