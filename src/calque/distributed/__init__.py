"""PyTorch's own distributed names, as annotations of tensors on a mesh of JAX's devices.

`init_device_mesh("jax", ...)` and `init_process_group("calque")` put them in place, by `hooks`.
With meshes and groups of other devices they do what they always did.
"""
