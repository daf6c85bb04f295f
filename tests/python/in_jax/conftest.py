# tests/python/in_jax/conftest.py — four devices on the CPU, for the tests of split arrays
"""What JAX reads when it is imported."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
