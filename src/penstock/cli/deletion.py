"""Deleting several at once: each is tried, and what failed is said together."""

from collections.abc import Mapping
from typing import Any

from penstock.cli.connection import command, explained
from penstock.cli.output import Failure, print_json


def finish_deletion(noun: str, futures: Mapping[str, Any], bootstrap_server: str, *, as_json: bool) -> None:
    """Wait for the deletion of each `noun` by its name, and print those done; Failure with all that were refused."""
    deleted, failures = [], []
    for name, future in futures.items():
        try:
            with explained(f"delete {noun} '{name}'", bootstrap_server, topic=name, group=name):
                future.result()
        except Failure as failure:
            failures.append(failure)
            continue
        deleted.append(name)
        if not as_json:
            print(f"Deleted {noun} {name}.")
    if failures:
        hint = f"See which {noun}s there are: {command(f'{noun}s list', bootstrap_server)}"
        is_unknown = failures[0].code in ("UNKNOWN_TOPIC_OR_PART", "GROUP_ID_NOT_FOUND")
        raise Failure(
            " ".join(failure.what for failure in failures),
            hint=hint if is_unknown else failures[0].hint or hint,  # Nobody wants to create what is to be deleted.
            code=failures[0].code,
        )
    if as_json:
        print_json({"deleted": deleted})
