/* SPDX-License-Identifier: MIT */
#include "shim/diag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ringbuf/sys.h"

/* A connected pair over loopback, and the tuple that both ends would make of it. */
struct pair {
	int listener, connector, acceptor;
	struct nego_tuple tuple;
};

enum kind { V4, V6, MAPPED };

static void pair_open(struct pair *p, enum kind kind, bool accept_it)
{
	struct sockaddr_storage ss = { 0 }, near, far;
	struct sockaddr_in *in4 = (struct sockaddr_in *)&ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss;
	socklen_t len = kind == V4 ? sizeof(*in4) : sizeof(*in6);

	if (kind == V4) {
		in4->sin_family = AF_INET;
		in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	} else {
		in6->sin6_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, kind == V6 ? "::1" : "::ffff:127.0.0.1", &in6->sin6_addr), 1);
	}
	p->listener = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(p->listener >= 0);
	assert_int_equal(bind(p->listener, (struct sockaddr *)&ss, len), 0);
	assert_int_equal(listen(p->listener, 1), 0);
	assert_int_equal(getsockname(p->listener, (struct sockaddr *)&far, &len), 0);
	p->connector = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(p->connector >= 0);
	assert_int_equal(connect(p->connector, (struct sockaddr *)&far, len), 0);
	p->acceptor = accept_it ? accept(p->listener, NULL, NULL) : -1;
	if (accept_it)
		assert_true(p->acceptor >= 0);
	assert_int_equal(getsockname(p->connector, (struct sockaddr *)&near, &len), 0);
	assert_int_equal(nego_tuple_make(&p->tuple, (struct sockaddr *)&near, (struct sockaddr *)&far), 0);
}

static void pair_close(struct pair *p)
{
	close(p->connector);
	if (p->acceptor >= 0)
		close(p->acceptor);
	close(p->listener);
}

static uint32_t inode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint32_t)st.st_ino;
}

static uint64_t cookie_of(int fd)
{
	uint64_t cookie = 0;
	unsigned int len = sizeof(cookie);

	assert_int_equal(sys_getsockopt(fd, SOL_SOCKET, 57 /* SO_COOKIE */, &cookie, &len), 0);
	return cookie;
}

static void finds_both_sockets_of_a_connection(void **state)
{
	for (enum kind kind = V4; kind <= MAPPED; kind++) {
		struct diag_socket a, b;
		struct pair p;

		pair_open(&p, kind, true);
		assert_int_equal(diag_lookup(&a, &p.tuple, DIAG_CONNECTOR, 0), 0);
		assert_int_equal(diag_lookup(&b, &p.tuple, DIAG_ACCEPTOR, 0), 0);
		assert_int_equal(a.inode, inode_of(p.connector));
		assert_int_equal(b.inode, inode_of(p.acceptor));
		assert_true(a.cookie == cookie_of(p.connector) && b.cookie == cookie_of(p.acceptor));
		assert_int_equal(a.uid, geteuid());
		assert_int_equal(b.uid, geteuid());
		assert_true(a.open && b.open);
		pair_close(&p);
	}
}

static void a_listener_is_not_the_connection(void **state)
{
	struct diag_socket out;
	struct pair p;

	for (enum kind kind = V4; kind <= V6; kind++) {
		pair_open(&p, kind, true);
		p.tuple.connector_port ^= 1;
		assert_int_equal(diag_lookup(&out, &p.tuple, DIAG_ACCEPTOR, 0), -ENOENT);
		assert_int_equal(diag_lookup(&out, &p.tuple, DIAG_CONNECTOR, 0), -ENOENT);
		pair_close(&p);
	}
}

static void one_that_nobody_accepted_has_no_inode(void **state)
{
	struct diag_socket out;
	struct pair p;

	pair_open(&p, V4, false);
	assert_int_equal(diag_lookup(&out, &p.tuple, DIAG_ACCEPTOR, 0), 0);
	assert_int_equal(out.inode, 0);
	pair_close(&p);
}

static void the_uid_is_that_of_the_creator(void **state)
{
	struct diag_socket out;
	struct pair p;

	if (geteuid() != 0)
		skip();
	assert_int_equal(seteuid(1234), 0);
	pair_open(&p, V4, true);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(diag_lookup(&out, &p.tuple, DIAG_ACCEPTOR, 0), 0);
	assert_int_equal(out.uid, 1234);
	pair_close(&p);
}

static void unprivileged_look_ups_work(void **state)
{
	struct diag_socket out;
	struct pair p;
	int rc;

	if (geteuid() != 0)
		skip();
	pair_open(&p, V4, true);
	assert_int_equal(seteuid(65534), 0);
	rc = diag_lookup(&out, &p.tuple, DIAG_ACCEPTOR, 0);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(rc, 0);
	assert_int_equal(out.uid, 0);
	pair_close(&p);
}

static void counts_equal_what_was_moved(void **state)
{
	static char block[70000];

	for (enum kind kind = V4; kind <= MAPPED; kind++) {
		struct diag_bytes c, a;
		struct pair p;

		pair_open(&p, kind, true);
		assert_int_equal(diag_counts(p.connector, true, &c), 0);
		assert_int_equal(diag_counts(p.acceptor, false, &a), 0);
		assert_true(c.written == 0 && c.read == 0 && a.written == 0 && a.read == 0);
		assert_true(c.writable && c.readable && a.writable && a.readable);

		assert_int_equal(send(p.connector, block, 1000, 0), 1000);
		assert_int_equal(send(p.acceptor, block, 50000, 0), 50000);
		assert_int_equal(recv(p.acceptor, block, 300, 0), 300);
		assert_int_equal(recv(p.connector, block, 7, MSG_PEEK), 7);
		assert_int_equal(recv(p.connector, block, 40000, MSG_WAITALL), 40000);
		assert_int_equal(diag_counts(p.connector, true, &c), 0);
		assert_int_equal(diag_counts(p.acceptor, false, &a), 0);
		assert_int_equal(c.written, 1000);
		assert_int_equal(c.read, 40000);
		assert_int_equal(a.written, 50000);
		assert_int_equal(a.read, 300);
		pair_close(&p);
	}
}

static void counts_are_exact_with_a_full_send_buffer(void **state)
{
	static char block[65536];
	struct diag_bytes c;
	struct pair p;
	uint64_t sent = 0;
	ssize_t n;

	pair_open(&p, V4, true);
	while ((n = send(p.connector, block, sizeof(block), MSG_DONTWAIT)) > 0)
		sent += (uint64_t)n;
	assert_int_equal(diag_counts(p.connector, true, &c), 0);
	assert_int_equal(c.written, sent);
	pair_close(&p);
}

/* Each end's FIN counts as a byte here and there in the kernel: before and after it is acknowledged, before and after it is read. */
static void ends_of_stream_are_not_counted_as_bytes(void **state)
{
	static char block[3000];
	struct diag_bytes c, a;
	struct pair p;

	for (int first = 0; first < 2; first++) {
		pair_open(&p, V4, true);
		assert_int_equal(send(p.connector, block, 1000, 0), 1000);
		assert_int_equal(send(p.acceptor, block, 3000, 0), 3000);
		assert_int_equal(shutdown(first ? p.acceptor : p.connector, SHUT_WR), 0);
		for (int reads = 0; reads < 3; reads++) {
			assert_int_equal(diag_counts(p.connector, true, &c), 0);
			assert_int_equal(diag_counts(p.acceptor, false, &a), 0);
			assert_int_equal(c.written, 1000);
			assert_int_equal(a.written, 3000);
			assert_int_equal(c.read, reads ? 3000 : 0);
			assert_int_equal(a.read, reads ? 1000 : 0);
			assert_int_equal(c.writable, first);
			assert_int_equal(a.readable, first);
			assert_int_equal(a.writable, !first);
			assert_int_equal(c.readable, !first);
			if (!reads) {
				assert_int_equal(recv(p.connector, block, sizeof(block), MSG_WAITALL), 3000);
				assert_int_equal(recv(p.acceptor, block, 1000, MSG_WAITALL), 1000);
			} else if (reads == 1) {
				assert_int_equal(recv(first ? p.connector : p.acceptor, block, sizeof(block), 0), 0);
			}
		}
		assert_int_equal(shutdown(first ? p.connector : p.acceptor, SHUT_WR), 0);
		assert_int_equal(diag_counts(p.connector, true, &c), 0);
		assert_false(c.writable || c.readable);
		pair_close(&p);
	}
}

static void counts_of_no_tcp_socket_are_an_error(void **state)
{
	struct diag_bytes c;
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	assert_true(diag_counts(fd[0], true, &c) < 0);
	assert_true(diag_counts(-1, true, &c) < 0);
	close(fd[0]);
	close(fd[1]);
}

static void only_the_overflow_uid_is_in_doubt(void **state)
{
	int status;
	pid_t pid;

	assert_true(diag_uid_is_exact(0));
	assert_true(diag_uid_is_exact(1000));
	/* In a namespace that maps no uid, everybody looks like nobody. */
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(unshare(CLONE_NEWUSER) ? 77 : diag_uid_is_exact(65534) || !diag_uid_is_exact(1000));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_both_sockets_of_a_connection),
		cmocka_unit_test(a_listener_is_not_the_connection),
		cmocka_unit_test(one_that_nobody_accepted_has_no_inode),
		cmocka_unit_test(the_uid_is_that_of_the_creator),
		cmocka_unit_test(unprivileged_look_ups_work),
		cmocka_unit_test(counts_equal_what_was_moved),
		cmocka_unit_test(counts_are_exact_with_a_full_send_buffer),
		cmocka_unit_test(ends_of_stream_are_not_counted_as_bytes),
		cmocka_unit_test(counts_of_no_tcp_socket_are_an_error),
		cmocka_unit_test(only_the_overflow_uid_is_in_doubt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
