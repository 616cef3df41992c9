"""PyTorch's own distributed API, as annotations of tensors on a mesh of JAX devices.

`init_device_mesh("jax", ...)` and `init_process_group("calque")` install it through `hooks`. It
works as before with meshes and groups of other devices.
"""
