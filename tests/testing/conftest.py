"""The plugin's fixtures, whether or not this checkout was installed with its entry point."""

from penstock.testing.plugin import penstock_broker, penstock_settings, penstock_topic

__all__ = ["penstock_broker", "penstock_settings", "penstock_topic"]
