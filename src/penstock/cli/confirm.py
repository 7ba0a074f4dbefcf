"""Asking before something is gone for good."""

import sys

import typer

from penstock.cli.output import Failure


def confirm(question: str, why: str) -> None:
    """Return when the person says yes; exit when not, and a Failure when there is nobody to ask."""
    if not sys.stdin.isatty():
        raise Failure(f"{why}, and there is no terminal to ask.", hint="Add --yes.", code="USAGE")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
