/* SPDX-License-Identifier: MIT */
/*
 * Runs a target over its honest inputs, the files of its corpus directory, and a fixed number of mutations of both. The same
 * arguments make the same inputs on every machine: a failure is repeated by running it again, and its input is left in
 * the file that is named on the last line.
 *
 *   fuzz_NAME CORPUS-DIRECTORY MUTATIONS [SEED]
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define MAX_INPUTS 256

struct input {
	uint8_t bytes[FUZZ_INPUT_MAX];
	size_t size;
};

static struct input inputs[MAX_INPUTS];
static unsigned int nr_inputs;
static struct input now;
static uint64_t random_state;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static size_t below(size_t end)
{
	return end ? (size_t)(next_random() % end) : 0;
}

/* Numbers at which arithmetic goes wrong. */
static const uint64_t edges[] = {
	0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536,
	UINT64_C(0x7fffffff), UINT64_C(0x80000000), UINT64_C(0xffffffff), UINT64_C(0x100000000),
	UINT64_C(0x7fffffffffffffff), UINT64_C(0x8000000000000000), UINT64_MAX - 1, UINT64_MAX,
};

static void mutate_once(struct input *in)
{
	size_t at = below(in->size), len, from;
	uint64_t edge;

	switch (below(8)) {
	case 0:
		if (in->size)
			in->bytes[at] ^= (uint8_t)(1u << below(8));
		break;
	case 1:
		if (in->size)
			in->bytes[at] = (uint8_t)next_random();
		break;
	case 2:
		edge = edges[below(sizeof(edges) / sizeof(edges[0]))];
		len = (size_t)1 << below(4);
		if (at + len <= in->size)
			memcpy(in->bytes + at, &edge, len);
		break;
	case 3:
		in->size = at;
		break;
	case 4:
		len = below(64);
		if (in->size + len <= FUZZ_INPUT_MAX) {
			for (size_t i = 0; i < len; i++)
				in->bytes[in->size++] = (uint8_t)next_random();
		}
		break;
	case 5:
		from = below(in->size);
		len = below(in->size - (from > at ? from : at));
		memmove(in->bytes + at, in->bytes + from, len);
		break;
	case 6:
		len = below(in->size - at);
		memmove(in->bytes + at, in->bytes + at + len, in->size - at - len);
		in->size -= len;
		break;
	default:
		if (nr_inputs) {
			const struct input *other = &inputs[below(nr_inputs)];

			len = below(other->size + 1);
			if (at + len <= FUZZ_INPUT_MAX) {
				memcpy(in->bytes + at, other->bytes, len);
				if (in->size < at + len)
					in->size = at + len;
			}
		}
	}
}

static void read_corpus(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)) && nr_inputs < MAX_INPUTS) {
		char name[4096];
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		file = fopen(name, "rb");
		if (!file)
			continue;
		inputs[nr_inputs].size = fread(inputs[nr_inputs].bytes, 1, FUZZ_INPUT_MAX, file);
		nr_inputs++;
		fclose(file);
	}
	closedir(dir);
}

/* Into a copy of exactly its size, so that a sanitizer sees the first byte beyond it. */
static void run_now(void)
{
	uint8_t *exact = malloc(now.size ? now.size : 1);

	fuzz_check(exact);
	memcpy(exact, now.bytes, now.size);
	LLVMFuzzerTestOneInput(exact, now.size);
	free(exact);
}

static void keep_input(int sig)
{
	const char *dir = getenv("TMPDIR");
	char name[4096];
	FILE *file;

	signal(sig, SIG_DFL);
	snprintf(name, sizeof(name), "%s/fuzz-failure-%d", dir ? dir : "/tmp", (int)getpid());
	file = fopen(name, "wb");
	if (file) {
		fwrite(now.bytes, 1, now.size, file);
		fclose(file);
		printf("the input is in %s\n", name);
		fflush(stdout);
	}
	raise(sig);
}

int main(int argc, char **argv)
{
	unsigned long mutations;

	if (argc < 3) {
		fprintf(stderr, "usage: %s CORPUS-DIRECTORY MUTATIONS [SEED]\n", argv[0]);
		return 2;
	}
	alarm(100);
	signal(SIGABRT, keep_input);
	signal(SIGSEGV, keep_input);
	signal(SIGBUS, keep_input);
	mutations = strtoul(argv[2], NULL, 10);
	random_state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
	random_state = random_state * UINT64_C(0x9e3779b97f4a7c15) | 1;
	while (nr_inputs < MAX_INPUTS / 2) {
		size_t size = fuzz_seed(nr_inputs, inputs[nr_inputs].bytes);

		if (!size)
			break;
		inputs[nr_inputs++].size = size;
	}
	read_corpus(argv[1]);
	fuzz_check(nr_inputs);
	for (unsigned int i = 0; i < nr_inputs; i++) {
		now = inputs[i];
		run_now();
	}
	for (unsigned long i = 0; i < mutations; i++) {
		now = inputs[below(nr_inputs)];
		for (size_t k = 1 + below(6); k; k--)
			mutate_once(&now);
		run_now();
	}
	printf("%u inputs and %lu mutations\n", nr_inputs, mutations);
	return 0;
}
