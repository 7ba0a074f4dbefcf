"""SaslAuthenticate: the proof that a connection is another broker's (docs/adr/0003).

An unknown broker, one that has registered anew and a wrong secret get the same answer, and the connection ends. v1 adds
how long the session lasts: here as long as the broker's registration, so 0 is said. v2 is flexible and nothing else.
"""

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey, RequestHeader, raw_handler
from penstock.server.authentication import proved
from penstock.server.connection import Reply
from penstock.server.context import Context
from penstock.wire.codec import Struct, decode_request, encode_response

FAILED_DELAY_S = 0.1  # Until a connection that could not prove anything is closed: Kafka's default.


@raw_handler(ApiKey.SASL_AUTHENTICATE, versions=range(3))
def sasl_authenticate(context: Context, header: RequestHeader, frame: memoryview, position: int, reply: Reply) -> None:
    request = decode_request(header.api_key, header.version, frame, position)
    authentication = header.authentication
    code, message = ErrorCode.none, None
    if not authentication.is_begun:
        code, message = ErrorCode.illegal_sasl_state, "SaslHandshake comes first"
    else:
        authentication.is_begun = False
        authentication.broker = proved(request.auth_bytes, context.metadata.image)
        if authentication.broker is None:
            code, message = ErrorCode.sasl_authentication_failed, "Authentication failed"
    response = Struct(error_code=code, error_message=message, auth_bytes=b"", session_lifetime_ms=0)
    reply.send([encode_response(header.api_key, header.version, response)])
    if code is ErrorCode.sasl_authentication_failed:
        reply.close_later(FAILED_DELAY_S, "authentication failed")
