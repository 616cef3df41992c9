"""`calque.lower`: a graph of calls becomes one of ATen operators."""
