"""Differences between PyTorch's releases; the device follows the installed one."""


class Release:
    """The facts of PyTorch's release that rules depend on.

    Attributes:
        limits_saturate: whether `clamp` takes a limit below (or above) all numbers of an integer
            dtype as its least (or largest) number, as PyTorch 2.15 does. Earlier ones refuse the
            limit, and wrap a small negative one of an unsigned dtype.
    """

    limits_saturate = False


RELEASE = Release()
