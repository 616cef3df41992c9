"""The command line of calque, a separate package
so that `calque --help` does not import PyTorch.
"""
