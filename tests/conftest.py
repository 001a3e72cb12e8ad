"""What all tests share: where jax is installed, virtual cores enough for every one of them.

jax takes their number once, when the first test that needs a device starts it.
"""

try:
    import jax
except ImportError:
    pass
else:
    jax.config.update("jax_num_cpu_devices", 8)
