"""ApiVersions: what this broker serves, read off the table of handlers.

A version that we do not know is answered in v0 with UNSUPPORTED_VERSION and our range, so that the client can come down
(KIP-511); the response header is always v0, since the client cannot know better. v3 adds the client's name and version,
which must be harmless to print, and the features.
"""

import re

from penstock.base.errors import ErrorCode
from penstock.server.api import APIS, Api, ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

# Tools read the finalized metadata.version to guess what a cluster can do; 25 is that of Kafka 4.0.
METADATA_VERSION = 25


# The Java client and the tools take the new group protocol for finalized at 1, as ConsumerGroupHeartbeat is served.
GROUP_VERSION = 1

# With 2, Java and franz-go leave it to the leaders to add partitions, and get a new epoch at every end (KIP-890).
TRANSACTION_VERSION = 2


def _range(api: Api) -> Struct:
    return Struct(api_key=int(api.key), min_version=api.advertised_min, max_version=api.versions.stop - 1)


@handler(ApiKey.API_VERSIONS, versions=range(5))
def api_versions(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version >= 3 and not (
        SOFTWARE_NAME.fullmatch(request.client_software_name)
        and SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return Struct(error_code=ErrorCode.invalid_request, api_keys=[])
    return Struct(
        error_code=ErrorCode.none,
        api_keys=[_range(APIS[key]) for key in sorted(APIS) if APIS[key].is_advertised],
        supported_features=[
            Struct(name="group.version", min_version=1, max_version=GROUP_VERSION),
            Struct(name="metadata.version", min_version=1, max_version=METADATA_VERSION),
            Struct(name="transaction.version", min_version=0, max_version=TRANSACTION_VERSION),
        ],
        finalized_features_epoch=0,
        finalized_features=[
            Struct(name="group.version", min_version_level=GROUP_VERSION, max_version_level=GROUP_VERSION),
            Struct(name="metadata.version", min_version_level=METADATA_VERSION, max_version_level=METADATA_VERSION),
            Struct(
                name="transaction.version",
                min_version_level=TRANSACTION_VERSION,
                max_version_level=TRANSACTION_VERSION,
            ),
        ],
    )


def unsupported_version() -> Struct:
    """The v0 answer to a version that we do not know."""
    return Struct(error_code=ErrorCode.unsupported_version, api_keys=[_range(APIS[ApiKey.API_VERSIONS])])
