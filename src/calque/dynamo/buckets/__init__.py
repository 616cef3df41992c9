"""Pads varying sizes to buckets, with one program for each set of buckets."""
