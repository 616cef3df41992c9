"""The colours of families and of `ViewNode.served`, on light and dark backgrounds."""

from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on a light and on a dark background."""

    light: str
    dark: str


COLOURS: dict[str, Colour] = {
    "attention": Colour("#9333ea", "#c084fc"),
    "convolution": Colour("#2563eb", "#60a5fa"),
    "matmul": Colour("#4f46e5", "#818cf8"),
    "recurrent": Colour("#7c3aed", "#a78bfa"),
    "normalization": Colour("#0d9488", "#2dd4bf"),
    "pooling": Colour("#0284c7", "#38bdf8"),
    "loss": Colour("#be123c", "#fb7185"),
    "activation": Colour("#d97706", "#fbbf24"),
    "embedding": Colour("#15803d", "#4ade80"),
    "random": Colour("#c026d3", "#e879f9"),
    "reduction": Colour("#b45309", "#f59e0b"),
    "indexing": Colour("#65a30d", "#a3e635"),
    "shape": Colour("#64748b", "#94a3b8"),
    "creation": Colour("#78716c", "#a8a29e"),
    "control": Colour("#dc2626", "#f87171"),
    "elementwise": Colour("#ea580c", "#fb923c"),
    "federated": Colour("#0891b2", "#22d3ee"),
    "input": Colour("#059669", "#34d399"),
    "parameter": Colour("#8b8f98", "#8b93a1"),
    "output": Colour("#059669", "#34d399"),
    "check": Colour("#b91c1c", "#fca5a5"),
    "group": Colour("#475569", "#94a3b8"),
    "other": Colour("#6b7280", "#9ca3af"),
}
"""The colour of each family."""

SERVED: dict[str, Colour] = {
    "rule": Colour("#15803d", "#4ade80"),
    "decomposition": Colour("#2563eb", "#60a5fa"),
    "fallback": Colour("#d97706", "#fbbf24"),
    "escape": Colour("#dc2626", "#f87171"),
    "": Colour("#9ca3af", "#6b7280"),
}
"""The colour for each value of `ViewNode.served`."""
