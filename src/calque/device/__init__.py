"""The PyTorch device "jax": plain tensors whose storages hold `jax.Array`s."""
