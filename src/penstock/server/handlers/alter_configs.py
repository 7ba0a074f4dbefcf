"""AlterConfigs: replace all overrides of a topic or a broker at once; what is not mentioned returns to its default.

Kafka deprecates it for IncrementalAlterConfigs, and older clients still send it. What can be altered is said there.
"""

from penstock.cluster.config_plan import AlterConfig, ConfigOperation, ConfigResult, Operation
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.ALTER_CONFIGS, versions=range(3), is_at_controller=True)
async def alter_configs(context: Context, header: RequestHeader, request: Struct) -> Struct:
    alterations = [
        AlterConfig(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(item.name, Operation.SET, item.value) for item in resource.configs],
            replaces_all=True,
        )
        for resource in request.resources
    ]
    results = await context.controller.alter_configs(alterations, validate_only=request.validate_only)
    return Struct(responses=[config_response(result) for result in results])


def config_response(result: ConfigResult) -> Struct:
    return Struct(
        error_code=result.code,
        error_message=result.message,
        resource_type=result.resource_type,
        resource_name=result.resource_name,
    )
