"""IncrementalAlterConfigs: set and delete single overrides, add to and take from lists (KIP-339).

Topics: every setting of the table in docs/configuration.md. Brokers: those that can change at run time, for one broker
or, under the name "", for all; others are refused with INVALID_REQUEST. Values are stored as plain text after their
rule has accepted them, and never expanded. Either all operations on a resource take effect or none.
"""

from penstock.cluster.config_plan import AlterConfig, ConfigOperation
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.handlers.alter_configs import config_response
from penstock.wire.codec import Struct


@handler(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=range(2), is_at_controller=True)
async def incremental_alter_configs(context: Context, header: RequestHeader, request: Struct) -> Struct:
    alterations = [
        AlterConfig(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(item.name, item.config_operation, item.value) for item in resource.configs],
        )
        for resource in request.resources
    ]
    results = await context.controller.alter_configs(alterations, validate_only=request.validate_only)
    return Struct(responses=[config_response(result) for result in results])
