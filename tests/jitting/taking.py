"""Whether calls take the short way."""

from calque.jitting.fast_call import FastCall, FastCalls
from calque.jitting.generated.source import MISS


class Taken:
    """Counts the calls that took the short way.

    Args:
        patch: pytest's monkeypatch.

    Attributes:
        count: of all of them.
        alone: of those whose thread was alone.
    """

    def __init__(self, patch):
        self.count = self.alone = 0
        like = FastCalls.like

        def counting(function, alone):
            def counted(args):
                result = function(args)
                self.count += result is not MISS
                self.alone += alone and result is not MISS
                return result

            return function and counted

        def counted(calls, *given):
            found = like(calls, *given)
            return found and FastCall(counting(found.alone, True), counting(found.shared, False))

        patch.setattr(FastCalls, "like", counted)
