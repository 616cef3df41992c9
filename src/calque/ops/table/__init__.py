"""The table of rules itself, PyTorch's type promotion, and what rules of every family share."""
