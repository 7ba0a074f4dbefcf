"""DescribeConfigs: the settings of topics and of this broker, with their sources.

v3 adds types and documentation (KIP-569). No keys in a resource means all; a key that does not exist is left out, as
Kafka does. The broker named "" stands for what was changed at run time for all brokers. There are no secrets among the
settings. Not served: BROKER_LOGGER, CLIENT_METRICS and GROUP resources.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.cluster.config_plan import ALL_BROKERS_NAME, ResourceType
from penstock.cluster.topic_plan import existing_topic
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.config_view import ConfigValue, broker_configs, default_broker_configs, topic_configs
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5))
def describe_configs(context: Context, header: RequestHeader, request: Struct) -> Struct:
    # Each once, however often it is asked for: an answer is a thousand times as long as a question.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    return Struct(results=[_resource(context, resource, request) for resource in resources.values()])


def _resource(context: Context, resource: Struct, request: Struct) -> Struct:
    keys = set(resource.configuration_keys or ())
    code, message, values = ErrorCode.none, None, []
    try:
        values = _values(context, resource)
    except Refused as error:
        code, message = error.code, error.message
    return Struct(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_config(value, request) for value in values if not keys or value.name in keys],
    )


def _values(context: Context, resource: Struct) -> list[ConfigValue]:
    image = context.metadata.image
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        return topic_configs(image, existing_topic(image, name).config, context.config)
    if resource.resource_type == ResourceType.BROKER:
        if name == ALL_BROKERS_NAME:
            return default_broker_configs(image)
        if name != str(context.config.node_id):
            raise Refused(ErrorCode.invalid_request, f"This is broker {context.config.node_id}, not {name[:100]!a}")
        return broker_configs(image, context.config)
    raise Refused(ErrorCode.invalid_request, f"Resource type {resource.resource_type} has no settings here")


def _config(value: ConfigValue, request: Struct) -> Struct:
    return Struct(
        name=value.name,
        value=value.value,
        read_only=value.is_read_only,
        config_source=value.source,
        is_sensitive=False,
        synonyms=[Struct(**synonym._asdict()) for synonym in value.synonyms] if request.include_synonyms else (),
        config_type=value.type,
        documentation=value.documentation if request.include_documentation else None,
    )
