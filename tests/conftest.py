"""Settings for all tests."""

from hypothesis import settings

# No deadline per example: the machines that run this are shared, and a slow second says nothing about the code.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
