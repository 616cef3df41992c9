"""Proxies and leaf functions: what stands for a value while a program is traced."""
