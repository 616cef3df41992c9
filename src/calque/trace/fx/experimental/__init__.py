"""The names of `torch.fx.experimental`; what is not here is torch's own module."""
