"""The table of rules, PyTorch's type promotion, and helpers for rules of every family."""
