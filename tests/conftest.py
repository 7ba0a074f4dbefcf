"""Settings for all tests."""

from hypothesis import HealthCheck, settings

# No deadline per example, nor for making them: the machines that run this are shared, and a slow second says nothing
# about the code.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")
