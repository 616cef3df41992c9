"""The families of operators, by name; the first matching row determines the family."""

import re

_ROWS = {
    "attention": r"attention|flex_attention",
    "convolution": r"conv(?!ert)|unfold|fold$",
    "matmul": r"linear(?!_)|matmul|addmm|[abs]?mm$|bmm|einsum|bilinear$|dot$|outer|tensordot|addmv",
    "recurrent": r"lstm|gru|rnn",
    "normalization": r"norm(?!al)|normalize",
    "pooling": r"pool|interpolate|upsample",
    "loss": r"loss|cross_entropy|mse$|nll",
    "activation": r"relu|gelu|silu|swish|sigmoid|tanh|softmax|elu$|selu|mish|softplus|hardt|glu$",
    "embedding": r"embedding|one_hot",
    "random": r"dropout|rand|bernoulli|multinomial|normal_?$|uniform_?$|seed",
    "reduction": r"(sum|mean|max|min|amax|amin|prod|var|std|any|all|argmax|argmin|topk|sort|"
    r"cumsum|logsumexp|count_nonzero)(_\d+)?$",
    "indexing": r"gather|scatter|index|select|slice|take|where|masked|nonzero|getitem|setitem|roll",
    "shape": r"view|reshape|permute|transpose|^t$|flatten|squeeze|expand|repeat|cat$|stack$|chunk"
    r"|split|unbind|contiguous|pad$|^to$|_to_copy|clone|copy|size$|shape|narrow|movedim|swapaxes"
    r"|swapaxes|detach"
    r"|^(float|half|bfloat16|long|int|bool|double|type_as|alias|lift_fresh_copy)$",
    "creation": r"zeros|ones|empty|full|arange|linspace|eye$|tensor$|tril|triu|meshgrid",
    "control": r"cond$|while_loop|scan$|^map|raise_when|with_effects|Lambda|Block",
    "elementwise": r"add|sub|mul|div|neg|abs|pow|sqrt|exp|log|sin|cos|erf|clamp|clip|maximum"
    r"|minimum|floor|ceil|round|sign|reciprocal|square|lerp|^(i?and|i?or|xor|invert|gt|lt|ge|le|eq|ne)$"
    r"|logical|bitwise|isnan|isfinite|fmod|remainder|mod$|greater|less|equal",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _ROWS.items()}

FAMILIES = (*_ROWS, "federated", "input", "parameter", "output", "check", "other")
"""All families."""


def family_of(name: str) -> str:
    """Returns the family of an operator, given its name without its namespace.

    >>> family_of("Conv2d"), family_of("scaled_dot_product_attention"), family_of("quux")
    ('convolution', 'attention', 'other')
    """
    name = name.strip("_")
    return next((family for family, row in _PATTERNS.items() if row.search(name)), "other")
