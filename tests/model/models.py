# SPDX-License-Identifier: MIT
"""The table of models: what must hold (scenes), and what must be noticed (mutations).

A scene is the model under the given macros. A mutation is one deliberate breakage, -DMUT_<name>, searched under the macros of a scene in
which it matters; the search must find a counter-example, or the model proves nothing about that line of the code."""

MODELS = {
    "ring": {
        "scenes": {
            "both-sleep": ([], "there and back between the rings, cut into any pieces, both sides sleep"),
        },
        "mutations": {
            "PUBLISH_BEFORE_COPY": ([], "the tail is published before the bytes are there"),
            "CONSUME_BEFORE_COPY": ([], "the head is published before the bytes are copied out"),
            "ROOM_OFF_BY_ONE": ([], "a full ring takes one byte more"),
            "NO_FENCE_AFTER_PUBLISH": ([], "the sender looks at the wake word before its tail is visible"),
            "NO_FENCE_AFTER_CONSUME": ([], "the receiver looks at the wake word before its head is visible"),
            "NO_SECOND_LOOK_FOR_ROOM": ([], "sleeps for room without looking again after arming"),
            "QUARTER_BY_LENGTH": ([], "room is told only when one read frees a quarter"),
            "QUARTER_OF_THE_LARGE": (["-DOVER=16"], "room in the small ring is told at quarters of the overflow ring"),
            "BACK_BEFORE_TAKEN": ([], "back to the small ring while bytes in the other one are unread"),
            "PLACE_AFTER_TAIL": ([], "where the rings change is told after the tail"),
            "ONE_BIT": ([], "a second stay in the overflow ring looks like the first"),
            "MOVE_WITHOUT_BYTES": ([], "a move is taken from a tail with no new byte before it"),
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
    "verbs": {
        "scenes": {
            "held": ([], "a sender that holds bytes behind a closed gate and never calls again"),
            "sleepers": (["-DSLEEPERS"], "two threads asleep on one completion channel, one pump at a time"),
            "credits": (["-DCREDITS"], "two ends stream to each other through few receive requests"),
            "ends": (["-DENDS"], "FIN over TCP races bytes over RDMA; killed, or the queue pair lost, at any moment"),
            "ends-clean": (["-DENDS", "-DCLEAN"], "the same where nothing fails: no reset"),
        },
        "mutations": {
            "NO_HELD": ([], "the message with which the gate closes does not say so"),
            "NO_FENCE_BEFORE_POLL": ([], "the tail is shown after the look that decides to hold"),
            "NO_REOPEN": ([], "the tail is read without telling the sender to hold no more"),
            "READ_BEFORE_REOPEN": ([], "the tail is read before the sender is told to hold no more"),
            "NO_FETCH": ([], "who was told HELD sleeps without fetching"),
            "FETCHED_IS_ANNOUNCED": ([], "bytes that were fetched are counted again when they are posted"),
            "ARM_AFTER_POLL": ([], "the queue is armed after the last look"),
            "NO_CREDIT": (["-DWINDOW=9"], "a receiver that sends nothing back reports nothing"),
            "DRAIN_WITHOUT_ARMING": (["-DSLEEPERS"], "who drains the channel does not arm for the others"),
            "POLL_BEFORE_ARM": (["-DSLEEPERS"], "the queue is polled, then armed"),
            "NO_LOOK_AGAIN": (["-DSLEEPERS"], "the pump's holder lets go without another look at the marks"),
            "NO_RESERVE": (["-DCREDITS"], "bytes use the last receive requests"),
            "RECEIVES_UNREPORTED": (["-DCREDITS"], "receive requests are told of with heads only"),
            "GRANTED_BEFORE_POSTED": (["-DCREDITS"], "receive requests are told of and not posted"),
            "END_AT_FIN": (["-DENDS"], "the end is told before the bytes in front of it have come"),
            "END_WITHOUT_FIN": (["-DENDS"], "TCP's end without FIN is taken for the stream's"),
            "DESTROYED_AT_ONCE": (["-DENDS", "-DCLEAN"], "the queue pair is destroyed before everything is acknowledged"),
            "NO_PROBE": (["-DENDS"], "who waits for the rest behind TCP's end never asks whether the queue pair lives"),
        },
    },
    "switch_remote": {
        "scenes": {
            "stream": ([], "words and bytes on roads without order, sender killed and link lost anywhere"),
        },
        "mutations": {
            "NO_ACK": ([], "the frame is written without the receiver's acknowledgement"),
            "WORDS_DECIDE": ([], "data at S without a void that has come is called a lie"),
            "NOT_CONFIRMED": ([], "data that begins like the frame is sent before its void is delivered"),
            "LOST_AND_SENT": ([], "the same where the link was lost meanwhile"),
            "TORN_GOES_ON": ([], "a lane whose link is lost inside the frame goes on with data"),
            "NO_DRAIN_AT_PREFIX": ([], "a prefix is judged without taking the words that have been delivered"),
            "LOST_MEANS_DATA": ([], "a prefix is taken for data because the link is lost"),
            "END_WITHOUT_FIN": ([], "TCP's end without FIN is taken for the stream's"),
            "FIN_AND_DESTROY": (["-DCLEAN"], "the queue pair is destroyed before everything is delivered"),
        },
    },
}
