/* SPDX-License-Identifier: MIT
 * Only the kernel and the dynamic linker decide in the end; what is told here is told before the program starts,
 * because afterwards nothing would say why it runs without Ringway.
 */
#include "tools/target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#else
#error "add this machine's ELF number"
#endif

static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return errno == ENOTDIR ? -ENOENT : -errno;
	if (!S_ISREG(st.st_mode) || access(path, X_OK))
		return -EACCES;
	return 0;
}

int target_find(const char *name, char path[PATH_MAX])
{
	const char *dir = getenv("PATH");
	int result = -ENOENT;

	if (!*name)
		return -ENOENT;
	if (strchr(name, '/')) {
		if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX)
			return -ENOENT;
		return check_executable(path);
	}
	if (!dir)
		dir = "/bin:/usr/bin";
	for (;;) {
		const char *end = strchrnul(dir, ':');
		int length = (int)(end - dir);
		int status = -ENOENT;

		/* An empty element is the current directory. */
		if (snprintf(path, PATH_MAX, "%.*s%s%s", length, dir, length ? "/" : "./", name) < PATH_MAX)
			status = check_executable(path);
		if (!status)
			return 0;
		if (status == -EACCES)
			result = -EACCES;
		if (!*end)
			return result;
		dir = end + 1;
	}
}

/* The interpreter of a script's "#!" line, or false. */
static bool script_interpreter(const char *head, char *interpreter, size_t size)
{
	size_t length;

	if (strncmp(head, "#!", 2))
		return false;
	head += 2 + strspn(head + 2, " \t");
	length = strcspn(head, " \t\n");
	if (!length || length >= size)
		return false;
	memcpy(interpreter, head, length);
	interpreter[length] = 0;
	return true;
}

/* The path of the dynamic linker that the file names; "" where it names one that cannot be read. False: it names none. */
static bool dynamic_linker(int fd, const ElfW(Ehdr) *header, char path[PATH_MAX])
{
	*path = 0;
	for (int i = 0; i < header->e_phnum; i++) {
		ElfW(Phdr) segment;
		off_t at = (off_t)(header->e_phoff + (size_t)i * sizeof(segment));
		ssize_t length;

		if (pread(fd, &segment, sizeof(segment), at) != sizeof(segment))
			return true;
		if (segment.p_type != PT_INTERP)
			continue;
		length = pread(fd, path, segment.p_filesz < PATH_MAX ? segment.p_filesz : PATH_MAX - 1, (off_t)segment.p_offset);
		path[length > 0 ? length : 0] = 0;
		return true;
	}
	return false;
}

static bool is_musls(const char *linker)
{
	const char *slash = strrchr(linker, '/');

	return !strncmp(slash ? slash + 1 : linker, "ld-musl-", strlen("ld-musl-"));
}

/* `interpreter` is NULL for what is one itself: a script's interpreter is not followed further. */
static enum target_kind inspect(const char *path, char *interpreter, const char **what)
{
	union {
		char text[PATH_MAX];
		ElfW(Ehdr) elf;
	} head = { .text = "" };
	enum target_kind kind = TARGET_FINE;
	char linker[PATH_MAX];
	struct stat st;
	int fd;

	*what = "";
	if (!stat(path, &st)) {
		if (st.st_mode & S_ISUID)
			*what = "is setuid";
		else if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
			*what = "is setgid";
		else if (getxattr(path, "security.capability", NULL, 0) > 0)
			*what = "has file capabilities";
	}
	if (**what)
		return TARGET_PRIVILEGED;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return TARGET_FINE; /* executable but not readable: nothing is known against it */
	if (read(fd, head.text, sizeof(head.text) - 1) < (ssize_t)sizeof(head.elf) || memcmp(head.text, ELFMAG, SELFMAG)) {
		close(fd);
		if (interpreter && script_interpreter(head.text, interpreter, PATH_MAX))
			return inspect(interpreter, NULL, what);
		return TARGET_FINE;
	}
	if (head.elf.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) || head.elf.e_machine != OWN_MACHINE) {
		*what = "is built for another machine or word size";
		kind = TARGET_OTHER_CLASS;
	} else if (head.elf.e_phentsize == sizeof(ElfW(Phdr)) && !dynamic_linker(fd, &head.elf, linker)) {
		*what = "is statically linked";
		kind = TARGET_STATIC;
	} else if (head.elf.e_phentsize == sizeof(ElfW(Phdr)) && is_musls(linker)) {
		*what = "is linked with another libc (musl)";
		kind = TARGET_OTHER_LIBC;
	}
	close(fd);
	return kind;
}

enum target_kind target_inspect(const char *path, char interpreter[PATH_MAX], const char **what)
{
	*interpreter = 0;
	return inspect(path, interpreter, what);
}
