# SPDX-License-Identifier: MIT
"""The table of models: what must hold (scenes), and what must be noticed (mutations).

A scene is the model under the given macros. A mutation is one deliberate breakage, -DMUT_<name>, searched under the macros of a scene in
which it matters; the search must find a counter-example, or the model proves nothing about that line of the code."""

MODELS = {
    "ring": {
        "scenes": {
            "both-sleep": ([], "almost two laps, cut into any pieces, both sides sleep"),
        },
        "mutations": {
            "PUBLISH_BEFORE_COPY": ([], "the tail is published before the bytes are there"),
            "CONSUME_BEFORE_COPY": ([], "the head is published before the bytes are copied out"),
            "ROOM_OFF_BY_ONE": ([], "a full ring takes one byte more"),
            "NO_FENCE_AFTER_PUBLISH": ([], "the sender looks at the wake word before its tail is visible"),
            "NO_FENCE_AFTER_CONSUME": ([], "the receiver looks at the wake word before its head is visible"),
            "NO_SECOND_LOOK_FOR_ROOM": ([], "sleeps for room without looking again after arming"),
            "QUARTER_BY_LENGTH": ([], "room is told only when one read frees a quarter"),
        },
    },
    "switch": {
        "scenes": {
            "stream": ([], "one lane, sender killed anywhere, a reader that was inside the kernel before"),
            "pair": (["-DPAIR", "-DBYTES=2"], "two single-threaded ends in turn, blocking, both lanes switch"),
            "no-order": (["-DNOORDER"], "the words arrive at any time after the bytes, as from another host"),
        },
        "mutations": {
            "NO_ACK": ([], "the frame is written without the receiver's acknowledgement"),
            "NO_VOID": ([], "data at S does not void the announcement"),
            "VOID_AFTER_SEND": ([], "void is stored after the data's system call"),
            "VOID_EQUAL": ([], "void is compared with == instead of >="),
            "VOID_BEFORE_PEEK": ([], "void is loaded before the bytes are looked at"),
            "READ_PAST_S": ([], "reads are not capped at S"),
            "ACK_WITH_RAW_READER": ([], "acknowledges while another thread is inside an uncapped read"),
            "RING_BEFORE_FRAME": ([], "bytes enter the ring before the frame is whole in the kernel"),
            "DATA_INSIDE_FRAME": ([], "program data is written into a frame that was cut short"),
            "PREFIX_WAITS": (["-DPAIR", "-DBYTES=2"], "data that looks like the frame's beginning is waited on for ever"),
            "END_WITHOUT_DRAIN": ([], "the end is told without another look at the ring"),
        },
    },
    "bell": {
        "scenes": {
            "one": (["-DSTRAY"], "one sender, one receiver that may poll, a stray ring, buffered stores"),
            "sleepers": (["-DSLEEPERS"], "two threads receive, one leaves early"),
            "past": (["-DPAST", "-DMESSAGES=2"], "one thread receives, one waits past what is unread"),
            "killed": (["-DKILLED"], "two processes send, one killed while it holds the lane's lock"),
            "two-bells": (["-DTWO_BELLS"], "one thread waits for bytes, one for room"),
        },
        "mutations": {
            "NO_SENDER_FENCE": ([], "the sender looks at the wake word before its tail is visible"),
            "NO_RECEIVER_FENCE": ([], "the receiver looks again before its ARMED is visible"),
            "NO_MEMBARRIER": ([], "POLLING is left without the heavy fence"),
            "NO_SECOND_LOOK": ([], "sleeps without looking again after arming"),
            "NO_ARM": ([], "sleeps without arming"),
            "DRAIN_AFTER_LOOK": ([], "the bell is drained after the second look"),
            "NO_EXCHANGE": (["-DSLEEPERS"], "ARMED is taken away by a store after the ring"),
            "POLLING_STORED": (["-DSLEEPERS"], "POLLING is stored over another sleeper's ARMED"),
            "NOT_PASSED_ON": (["-DSLEEPERS"], "who drained the bell and does not sleep rings for nobody"),
            "BARRIER_NOT_PASSED_ON": (["-DSLEEPERS"], "who left POLLING and does not sleep rings for nobody who armed meanwhile"),
            "DISARM_FOR_ALL": (["-DSLEEPERS"], "ARMED is taken back on leaving while another sleeps"),
            "DRAIN_ON_WAKING": (["-DSLEEPERS"], "the bell is drained on waking, not before sleeping"),
            "DRAIN_FROM_OTHERS": (["-DPAST", "-DMESSAGES=2"], "who waits past what is unread drains the ring that woke another"),
            "COUNTED_WITHOUT_LOOK": (["-DPAST", "-DMESSAGES=2"], "counts itself as asleep and does not look again"),
            "TAKEOVER_SILENT": (["-DKILLED"], "a lock is taken over from the dead without a ring"),
            "TAKEOVER_LOOKS": (["-DKILLED"], "a lock is taken over from the dead and rings only if armed"),
            "ONE_BELL": (["-DTWO_BELLS"], "one bell for bytes and for room"),
        },
    },
    "ends": {
        "scenes": {
            "rings": ([], "half close, close, death and writing to who has gone, both lanes on rings"),
        },
        "mutations": {
            "CLOSE_WITHOUT_DRAIN": ([], "closes while frames lie in the receive queue"),
            "CLOSE_UNREAD_SAYS_FIN": ([], "closes with ring bytes unread as if they had been read"),
            "END_WITHOUT_DRAIN": ([], "the end is told without another look at the ring"),
            "PROBE_AFTER_PUBLISH": ([], "the probe follows the bytes that it belongs to"),
            "PROBE_ONCE": ([], "who waits for room probes once only"),
            "NO_PROBE": ([], "who waits for room never probes"),
            "FRAME_WITHOUT_DATA": ([], "a frame is sent that no program byte follows"),
        },
    },
    "nego": {
        "scenes": {
            "strangers": ([], "nobody gives up; strangers come, the acceptor forks for a while"),
            "giving-up": (["-DMAY_GIVE_UP", "-DMAY_REFUSE"], "either end gives up or refuses at any moment"),
        },
        "mutations": {
            "LINKS_WITHOUT_VERDICT": (["-DMAY_GIVE_UP", "-DMAY_REFUSE"], "the acceptor links when its HELLO is out"),
            "WAITS_FOR_A_STRANGER": ([], "a silent stranger keeps the offer from hearing the peer"),
            "FIRST_SEGMENT": (["-DMAY_GIVE_UP", "-DMAY_REFUSE"], "a later dial goes on with the first one's segment"),
        },
    },
}
