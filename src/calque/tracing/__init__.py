"""Tracers that stand elsewhere than `calque.trace`: `record` watches a run on real data."""
