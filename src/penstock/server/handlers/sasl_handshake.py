"""SaslHandshake: names the mechanism that SaslAuthenticate is to use. Between brokers only, for now (docs/adr/0003).

Any other mechanism is refused with an empty list: ours is not for clients, so they are not told of it. The reply has no
place for throttling, and a client that is throttled is not read from all the same.
"""

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey, RequestHeader, raw_handler
from penstock.server.authentication import MECHANISM
from penstock.server.connection import Reply
from penstock.server.context import Context
from penstock.wire.codec import Struct, decode_request, encode_response


@raw_handler(ApiKey.SASL_HANDSHAKE, versions=range(2))
def sasl_handshake(context: Context, header: RequestHeader, frame: memoryview, position: int, reply: Reply) -> None:
    request = decode_request(header.api_key, header.version, frame, position)
    code, mechanisms = ErrorCode.none, [MECHANISM]
    if request.mechanism != MECHANISM:
        code, mechanisms = ErrorCode.unsupported_sasl_mechanism, []
    elif header.broker is not None:
        code, mechanisms = ErrorCode.illegal_sasl_state, []
    header.authentication.is_begun = code is ErrorCode.none
    response = Struct(error_code=code, mechanisms=mechanisms)
    reply.send([encode_response(header.api_key, header.version, response)])
