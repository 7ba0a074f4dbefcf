"""Three kinds of error, never mixed.

`Refused` becomes an error code in a reply, `BadPeer` closes the connection, and a broken invariant is an assertion.
"""

from penstock.base.error_code import ErrorCode

__all__ = ["BadPeer", "ErrorCode", "Refused"]


class Refused(Exception):
    """The request is understood and answered with `code`; nothing has changed."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


class BadPeer(Exception):
    """The bytes make no sense as a request: no reply is possible and the connection is closed."""
