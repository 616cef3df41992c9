"""Sizes that vary, padded to buckets: one program for each set of buckets."""
