"""Checks that the names of a call's arrays are those of a module."""

from collections.abc import Container, Mapping


def check(
    kind: str, given: object, names: Mapping[str, int], elsewhere: Container[str] = ()
) -> None:
    """Compare given names with those of a module.

    Args:
        kind: the name of the argument.
        given: a dict whose keys are compared.
        names: the module's names with the identity of their values: of several names for one value,
            one is enough.
        elsewhere: names that belong in the argument `buffers`.

    Raises:
        TypeError: it is not a dict.
        RuntimeError: names are missing or unexpected.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{kind} must be a dict with the keys of state_dict(), not {type(given).__name__}"
        )
    found = {names[name] for name in given if name in names}
    missing = [name for name, one in names.items() if one not in found]
    unknown = [str(name) for name in given if name not in names]
    wrong = [f"{kind} lacks {', '.join(missing)}"] if missing else []
    if unknown:
        wrong.append(f"the module has no {', '.join(unknown)} among its {_described(kind)}")
    if any(name in elsewhere for name in unknown):
        wrong.append("pass buffers as `buffers=`")
    if wrong:
        raise RuntimeError(
            "; ".join(wrong)
            + ".\nPass the dict that calque.functional returned, or one with the same keys and "
            "other values."
        )


def _described(kind: str) -> str:
    return "parameters" if kind == "params" else kind
