"""Proxies, which represent values while a program is traced, and leaf functions."""
