"""The contents of traced graphs besides calls."""
