"""Who is at the other end of a connection: anybody, or a broker of this cluster that has proved it (docs/adr/0003).

A broker proves it with the secret of its own registration, which is in the metadata store and thus known to brokers
alone. What it proved holds for as long as that registration does.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NodeId
from penstock.cluster.image import BrokerRegistration, ClusterImage

MECHANISM = "PENSTOCK-BROKER"

# | node_id i32 | broker_epoch i64 | secret, to the end |
_PROOF_START = struct.Struct(">iq")


class BrokerIdentity(NamedTuple):
    node_id: NodeId
    epoch: int  # Of the registration whose secret it knew.

    def is_current(self, image: ClusterImage) -> bool:
        """Whether that registration is still the broker's: one that was taken for dead has to come again."""
        registration = image.brokers.get(self.node_id)
        return registration is not None and registration.epoch == self.epoch


@dataclass(slots=True)
class Authentication:
    """How far one connection has come. All of its request headers refer to it."""

    is_begun: bool = False  # A SaslHandshake named our mechanism; SaslAuthenticate is next.
    broker: BrokerIdentity | None = None  # Proved; see `require_broker`.


def proof_of(registration: BrokerRegistration) -> bytes:
    """What a broker with this registration shows to others."""
    return _PROOF_START.pack(registration.node_id, registration.epoch) + registration.secret.encode()


def proved(proof: bytes, image: ClusterImage) -> BrokerIdentity | None:
    """The broker whose proof this is, as far as our image knows; None when it is nobody's."""
    if len(proof) <= _PROOF_START.size:
        return None
    node_id, epoch = _PROOF_START.unpack_from(proof)
    registration = image.brokers.get(node_id)
    if registration is None or not registration.secret:
        return None
    if not hmac.compare_digest(proof, proof_of(registration)):
        return None
    return BrokerIdentity(NodeId(node_id), epoch)


def require_broker(authentication: Authentication, image: ClusterImage) -> BrokerIdentity:
    """The broker that the connection is of; Refused when it is no broker's, or one's that is another by now."""
    broker = authentication.broker
    if broker is None or not broker.is_current(image):
        raise Refused(ErrorCode.cluster_authorization_failed, "only brokers of the cluster may ask for this")
    return broker
