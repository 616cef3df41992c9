"""What PyTorch's releases do differently; the device asks the one that is installed."""


class Release:
    """What a rule has to know of PyTorch's release.

    Attributes:
        limits_saturate: whether `clamp` takes a limit below (or above) all numbers of an integer
            dtype as its least (or largest) number, as PyTorch 2.15 does. Earlier ones refuse the
            limit, and wrap a small negative one of an unsigned dtype.
    """

    limits_saturate = False


RELEASE = Release()
