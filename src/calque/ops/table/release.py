"""Differences between PyTorch's releases. The device behaves like the installed one."""


class Release:
    """The properties of PyTorch's release on which rules depend.

    Attributes:
        limits_saturate: whether `clamp` treats a limit below (or above) all numbers of an integer
            dtype as its least (or largest) number, like PyTorch 2.15. Earlier releases refuse the
            limit, and wrap a small negative one for an unsigned dtype.
    """

    limits_saturate = False


RELEASE = Release()
