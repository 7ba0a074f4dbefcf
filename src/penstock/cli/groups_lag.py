"""`penstock groups lag`: how far groups are behind, once or live."""

from typing import Annotated, Any

import typer

from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    SomeGroupIds,
    admin_client,
    explained,
)
from penstock.cli.group_offsets import LagChange, Lags, group_lags, lag_change, total_lag
from penstock.cli.group_view import describe_groups, list_groups, no_such_group
from penstock.cli.live import INTERVAL_S, Count, Frame, Interval, Look, watch_live
from penstock.cli.output import Failure, duration, print_json, print_table

COLUMNS = ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"]
TOTAL = "total"


def lag(
    groups: SomeGroupIds = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Go on until Ctrl-C, with the change per second and when it catches up."),
    ] = False,
    interval: Interval = INTERVAL_S,
    count: Count = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Show how many records groups have still to read, per partition and in all.

    \b
    Examples:
      penstock groups lag billing
      penstock groups lag --json | jq '.[] | {group, total_lag}'
      penstock groups lag billing --watch --interval 5
      penstock groups lag billing --watch --count 3 --json
    """
    if count is not None and not watch:
        raise Failure("--count goes with --watch.", hint="Add --watch, or leave --count away.", code="USAGE")
    admin = admin_client(bootstrap_server)
    wanted = list(dict.fromkeys(groups or ()))

    def sample() -> dict[str, Lags]:
        with explained("measure the lag", bootstrap_server):
            found = describe_groups(admin, wanted or list_groups(admin))
            return group_lags(admin, {name: found[name].partitions for name in sorted(found)})

    lags = sample()
    for group in wanted:
        if group not in lags:
            raise no_such_group(group, bootstrap_server)
    if watch:
        watch_live(sample, lag_frame, interval_s=interval, count=count, as_json=json)
    elif json:
        print_json([_as_json(group, lags[group]) for group in lags])
    elif not lags:
        print("There are no groups yet. A consumer makes one when it joins or commits.")
    else:
        print_table(COLUMNS, [row for group in lags for row in _rows(group, lags[group])])


def _rows(group: str, lags: Lags) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [(group, *lag, lag.lag) for lag in lags]
    return [*rows, (group, TOTAL, None, None, None, total_lag(lags))]


def _as_json(group: str, lags: Lags) -> dict[str, Any]:
    return {
        "group": group,
        "total_lag": total_lag(lags),
        "partitions": [{**lag._asdict(), "lag": lag.lag} for lag in lags],
    }


def lag_frame(look: Look[dict[str, Lags]]) -> Frame:
    """The table and the JSON of a look at groups."""
    rows: list[tuple[object, ...]] = []
    totals: list[tuple[object, ...]] = []
    as_json = []
    for group, lags in look.now.items():
        before = {(lag.topic, lag.partition): lag.lag for lag in look.before.get(group, ())}
        changes = [lag_change(before.get((lag.topic, lag.partition)), lag.lag, look.elapsed_s) for lag in lags]
        total_before = total_lag(look.before[group]) if group in look.before else None
        total = lag_change(total_before, total_lag(lags), look.elapsed_s)
        *of_partitions, of_total = _rows(group, lags)
        rows += [
            (*row, *_cells(change, lag.lag)) for row, change, lag in zip(of_partitions, changes, lags, strict=True)
        ]
        totals.append((*of_total, *_cells(total, total_lag(lags))))
        rows.append(totals[-1])
        found = _as_json(group, lags)
        for partition, change in zip(found["partitions"], changes, strict=True):
            partition.update(_change_json(change))
        as_json.append({**found, **_change_json(total)})
    return Frame([*COLUMNS, "CHANGE/S", "CAUGHT UP IN"], rows, {"groups": as_json}, short_rows=totals)


def _cells(change: LagChange, lag: int | None) -> tuple[object, object]:
    if change.catch_up_s is not None:
        return change.per_second, "now" if lag == 0 else duration(change.catch_up_s)
    return change.per_second, None if change.per_second is None else "never"


def _change_json(change: LagChange) -> dict[str, float | None]:
    return {
        "lag_per_s": None if change.per_second is None else round(change.per_second, 1),
        "catch_up_s": None if change.catch_up_s is None else round(change.catch_up_s, 1),
    }
