"""Follows every path of programs that branch on tensors, and joins the paths into one graph."""
