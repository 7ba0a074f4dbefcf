"""What clients of older versions are told in place of the errors of transactions that they do not know."""

from penstock.base.errors import ErrorCode


def fenced_as(code: ErrorCode, version: int, fenced_version: int) -> ErrorCode:
    """PRODUCER_FENCED is known from `fenced_version` on (KIP-588); before, INVALID_PRODUCER_EPOCH meant the same."""
    if code is ErrorCode.producer_fenced and version < fenced_version:
        return ErrorCode.invalid_producer_epoch
    return code
