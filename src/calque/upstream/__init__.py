"""What calque uses of JAX that JAX does not promise to keep: read this when a version changes."""
