"""What a run found, as the docs have it."""

from bench.ceiling import Ceiling

from bench import report

CEILING = Ceiling(5_000.0, 4_000.0, 10_000.0, 20_000.0, 5_000.0, 20_000.0)


def test_a_table_for_the_docs_has_medians_their_ratio_and_each_round() -> None:
    rounds = report.new_rounds()
    rounds["1 KB"]["produce MB/s"] = {"penstock": [600.0, 1_000.0, 800.0], "kafka": [400.0, 390.0, 0.5]}
    rounds["one record"]["p99 ms"] = {"penstock": [1.0, 0.0, 0.0], "kafka": [0.0, 0.0, 0.0]}
    assert report.markdown(rounds, CEILING, "penstock", "kafka").splitlines()[2:] == [
        "| 1 KB | produce MB/s | 800 | 390 | 2.05 | 20% | 600, 1,000, 800 | 400, 390, 0.5 |",
        "| one record | p99 ms | 0 | 0 | - |  | 1, 0, 0 | 0, 0, 0 |",
    ]
