"""calque's command line, in its own package so that `calque --help` does not import PyTorch."""
