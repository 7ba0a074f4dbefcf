"""Small replies, sent to all of their connections by one system call at the end of a turn of the loop.

Each send of its own goes through the event loop's layers and wakes its reader, who may run in our place before the next
one is sent. Linux sends many at once when it is asked with io_submit. What a socket does not take is left to its
transport, which is also who sends where there is no such call.
"""

import asyncio
from collections.abc import Callable

from penstock.base.kernel_queue import EVENT, REQUEST, WRITE, KernelQueue
from penstock.base.logging import get_logger

log = get_logger(__name__)

REPLIES_MAX = 64  # For one call; more of them take several.
JOINED_BYTES_MAX = 4 << 10  # Replies up to here are copied into one: that costs less than to send several buffers.

Waiting = tuple[asyncio.Transport, bytes]


class Outbox:
    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}  # By descriptor, in order; one reply each.
        self._queue: KernelQueue | None = None
        self._is_unavailable = False
        self._due: list[Callable[[], None]] = []
        self._is_turn_noted = False

    def call_at_end(self, function: Callable[[], None]) -> None:
        """Call it at the end of this turn, before the replies are sent."""
        self._due.append(function)
        self._note_turn()

    def send(self, transport: asyncio.Transport, descriptor: int, reply: bytes) -> None:
        """Send the reply, of JOINED_BYTES_MAX at most, in this turn; `transport` is empty, and has the descriptor."""
        waiting = self._waiting
        if descriptor in waiting or len(waiting) == REPLIES_MAX:
            self.flush()
            if transport.get_write_buffer_size():
                transport.write(reply)
                return
            waiting = self._waiting
        waiting[descriptor] = transport, reply
        self._note_turn()

    def flush_before(self, descriptor: int) -> None:
        """Send what waits for the connection, before something else is sent there by other means."""
        if descriptor in self._waiting:
            self.flush()

    def _note_turn(self) -> None:
        if not self._is_turn_noted:
            self._is_turn_noted = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        due, self._due = self._due, []
        for function in due:
            try:
                function()
            except Exception:  # Of one connection, and nobody else's.
                log.exception("replies could not be sent")
        self._is_turn_noted = False
        self.flush()

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if len(waiting) > 1 and (self._queue is not None or self._open()):
            replies = self._send_at_once(waiting)
        else:
            replies = list(waiting.values())
        for transport, reply in replies:
            if not transport.is_closing():
                transport.write(reply)

    def close(self) -> None:
        self.flush()
        self._give_up()

    def _give_up(self) -> None:
        """Send by transports from now on."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._is_unavailable = True

    def _open(self) -> bool:
        if self._is_unavailable:
            return False
        try:
            self._queue = KernelQueue(REPLIES_MAX, place_bytes=REPLIES_MAX * JOINED_BYTES_MAX)
        except (OSError, ImportError) as error:
            self._is_unavailable = True
            log.debug("replies are sent one by one: the kernel does not take many at once", reason=error)
            return False
        return True

    def _send_at_once(self, waiting: dict[int, Waiting]) -> list[Waiting]:
        """Send them; gives those that were not, or not to their end, with what is left of them."""
        queue = self._queue
        assert queue is not None
        sent: list[Waiting] = []
        start = 0
        for descriptor, item in waiting.items():
            transport, reply = item
            if transport.is_closing():
                continue  # Its descriptor may be another connection's by now.
            size = len(reply)
            queue.place[start : start + size] = reply
            number = len(sent)
            REQUEST.pack_into(
                queue.requests, number * REQUEST.size,
                number, 0, 0, WRITE, 0, descriptor, queue.place_address + start, size, 0, 0, 0, 0,
            )  # fmt: skip
            sent.append(item)
            start += size
        taken = queue.submit(len(sent))
        left = sent[taken:]
        # A socket's request is done when it is submitted, so that nobody waits here.
        events = queue.events(count_min=taken)
        if len(events) != taken * EVENT.size:
            # What came of some is not known, and what is told later must not be taken for news of other replies.
            log.error("the kernel does not tell what it sent", replies=taken, told=len(events) // EVENT.size)
            self._give_up()
            for transport, _ in sent[:taken]:
                transport.abort()  # Clients try again.
            return left
        for number, _, result, _ in EVENT.iter_unpack(events):
            transport, reply = sent[number]
            if result != len(reply):  # A full socket, or an error, which the transport will meet as well.
                left.append((transport, reply[max(result, 0) :]))
        return left
