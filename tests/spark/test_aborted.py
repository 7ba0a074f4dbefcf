"""The records of aborted transactions and all markers are passed over, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.aborted import AbortedRecords
from penstock.wire.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader


def batch(offset: int, producer_id: int, attributes: int) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, attributes, 0, 0, 0, producer_id, 0, 0, 1)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["write", "plain", "commit", "abort"])), max_size=40),
    st.integers(0, 40),
)
def test_only_what_was_committed_is_seen(steps, first):
    """A log made by three producers, read from any offset on, with the list that the broker would send along."""
    log, aborted, open_at, expected = [], [], {}, []
    void = {}
    for offset, (producer_id, step) in enumerate(steps):
        if step == "plain":
            log.append(batch(offset, producer_id, 0))
            expected.append(offset)
        elif step == "write":
            open_at.setdefault(producer_id, []).append(offset)
            log.append(batch(offset, producer_id, TRANSACTIONAL_MASK))
        else:
            log.append(batch(offset, producer_id, TRANSACTIONAL_MASK | CONTROL_MASK))
            written = open_at.pop(producer_id, [])
            if step == "commit":
                expected += written
            elif written:
                aborted.append((producer_id, written[0], offset))
    for written in open_at.values():  # Behind the last stable offset: the broker would not send them.
        void.update(dict.fromkeys(written, True))
    sent = [header for header in log if header.base_offset >= first]
    # The broker names every aborted transaction that touches what it sends.
    reader = AbortedRecords([(producer, start) for producer, start, end in aborted if end >= first])
    seen = [header.base_offset for header in sent if not reader.is_void(header)]
    assert [offset for offset in seen if offset not in void] == sorted(offset for offset in expected if offset >= first)
