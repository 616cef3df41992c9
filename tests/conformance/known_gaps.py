"""Entries of PyTorch's operator database on which the device does not agree with the CPU.

Each is (operator, dtype, mode) with a reason. An entry that begins to pass fails the suite, so that
the table only ever shrinks; `mode` is "eager" or "grad".
"""

KNOWN_GAPS: dict[tuple[str, str, str], str] = {}
