/* SPDX-License-Identifier: MIT */
/* The environment: whatever it says, every setting ends up within its bounds. Input: strings that end with a zero or with the input. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ringbuf/layout.h"
#include "shim/options.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_STRINGS = 64 };

/* Complaints go nowhere while a target runs, the sanitizer's do not come meanwhile: it aborts the process. */
static int quiet(void)
{
	static int null = -1;
	int kept = dup(2);

	if (null < 0)
		null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	fuzz_check(kept >= 0 && null >= 0 && dup2(null, 2) == 2);
	return kept;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *env[MAX_STRINGS + 2] = { "RINGWAY=1" };
	int nr = 1, kept;

	fuzz_check(text);
	memcpy(text, data, size);
	text[size] = '\0';
	for (size_t at = 0; at < size && nr <= MAX_STRINGS; at += strlen(text + at) + 1)
		env[nr++] = text + at;
	kept = quiet();
	options_read(env);
	fuzz_check(dup2(kept, 2) == 2);
	close(kept);
	fuzz_check(options.ring_bytes == OPTION_RING_AUTO || (options.ring_bytes >= RING_BYTES_MIN && options.ring_bytes <= RING_BYTES_MAX));
	fuzz_check(!(options.ring_bytes & (options.ring_bytes - 1)));
	fuzz_check(!(options.transports & ~(unsigned int)(TRANSPORT_BIT_SHM | TRANSPORT_BIT_VERBS)));
	fuzz_check(options.spin_us >= OPTION_SPIN_AUTO);
	fuzz_check((int)options.log_level >= LOG_LEVEL_OFF && options.log_level <= LOG_LEVEL_DEBUG);
	/* Kept by value: the program may write over its environment. */
	memset(text, 'x', size);
	fuzz_check(!options.summary_path || strlen(options.summary_path) < 4096);
	fuzz_check(!options.log_path || strlen(options.log_path) < 4096);
	free(text);
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	static const char *const seeds[] = {
		"RINGWAY_AFTER=8:65536", "RINGWAY_AFTER=0", "RINGWAY_RING=auto", "RINGWAY_RING=256K", "RINGWAY_RING=1024M", "RINGWAY_SPIN=auto",
		"RINGWAY_SPIN=50", "RINGWAY_TRANSPORTS=shm,verbs", "RINGWAY_TRANSPORTS=none", "RINGWAY_LOG=debug",
		"RINGWAY_LOG_FILE=/dev/null", "RINGWAY_SUMMARY=stderr", "RINGWAY_IDLE=60", "RINGWAY_NONSENSE=1", "PATH=/bin",
	};

	if (nr >= sizeof(seeds) / sizeof(seeds[0]))
		return 0;
	strcpy((char *)out, seeds[nr]);
	return strlen(seeds[nr]);
}
