"""Conversions between PyTorch programs and JAX functions, and export."""
