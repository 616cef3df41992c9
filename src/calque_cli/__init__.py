"""The command line of calque; a package of its own, so that `calque --help` imports no PyTorch."""
