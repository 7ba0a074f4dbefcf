"""Until when the holder of a lease may act on it: a pure core, with time as an argument.

In: a heartbeat that was sent at some moment has been answered; the lease is known to be over. Out: `may_act_until`, on
the same monotonic clock. Whoever leads under the lease looks at it before each ack, and so has stopped before anybody
else can be told that the lease is over, however late the news reaches the holder itself: its process may have been
paused, or be cut off from the store.

When ZooKeeper can end a session. The leader of the ensemble ends it `timeout_s` after the last sign of life that it
knows of. A heartbeat is a `sync`, which the leader itself answers, so one that was sent at `t` and answered proves that
the server we talk to was in touch with the leader after `t`. That server reports the sessions that it has heard from
twice a tick, so what the leader knows is at most half a tick older than `t`. A session is never shorter than two ticks.
Half a tick is then at most a quarter of `timeout_s`, and the margin of a third leaves a twelfth for reports that are
late and for clocks that do not run equally fast.

    t                          t + 2/3 timeout        t + 3/4 timeout                t + timeout
    heartbeat sent             we stop acting         the soonest end of the session

Invariant: `may_act_until` never goes back, except to the past when the lease is lost, which is final.
"""

from math import inf

MARGIN_SHARE = 1 / 3
HEARTBEAT_SHARE = 1 / 6  # Three heartbeats may be late before the lease runs out.


class LeaseTerm:
    def __init__(self, timeout_s: float) -> None:
        assert timeout_s > 0, f"{timeout_s=}"
        self._term_s = timeout_s * (1 - MARGIN_SHARE)
        self.may_act_until = -inf  # Nothing is proved before the first answer.
        self.is_lost = False

    def on_heartbeat_answered(self, sent_at: float) -> None:
        """Count from when it was sent, not from when the answer came: the lease may have been renewed at once."""
        if not self.is_lost:
            self.may_act_until = max(self.may_act_until, sent_at + self._term_s)

    def on_lost(self) -> None:
        self.is_lost = True
        self.may_act_until = -inf

    def may_act(self, now: float) -> bool:
        return now < self.may_act_until
