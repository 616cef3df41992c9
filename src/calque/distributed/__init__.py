"""PyTorch's own distributed names, as annotations of tensors on a mesh of JAX's devices.

`init_device_mesh("jax", ...)` and `init_process_group("calque")` install them, by `hooks`. With
meshes and groups of other devices they work as before.
"""
