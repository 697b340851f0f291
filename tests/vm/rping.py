# SPDX-License-Identifier: MIT
"""rping of librdmacm: round trips over rdma_cm and verbs, each checked by the client. Only while it runs: how it ends is not
steady. Its threads race for the event channel ("rdma_get_cm_event: Bad file descriptor", status 255), and the one that waits for
completions may wait for ever when the device goes. So it pings without end, is judged by what it says, and is killed."""

PORT = 7174


class Pings:
    """A server in one guest and its client in another, or in the same. LIMITS are arguments of Guest.start()."""

    def __init__(self, server, client, address, port=PORT, size=2000, **limits):
        argv = ['stdbuf', '-oL', 'rping', '-v', '-a', address, '-p', str(port), '-S', str(size)]
        self.server = server.start([*argv, '-s'], **limits)
        server.until_rdma_listening(port, self.server)
        self.client = client.start([*argv, '-c', '-V'], **limits)

    def until(self, count):
        """Wait until this many have been to and fro, and were right: a wrong one ends the client."""
        self.client.until(f'ping data: rdma-ping-{count - 1}:')
        return self

    def kill(self):
        self.client.kill()
        self.server.kill()


def ping(server, client, address, count, **how):
    Pings(server, client, address, **how).until(count).kill()
