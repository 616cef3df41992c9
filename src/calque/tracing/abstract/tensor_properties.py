"""Questions about a tensor that its abstract value answers, and what each answer depends on."""

_BY_ASPECT = {
    "shape": "shape size numel nelement nbytes is_same_size",
    "stride": "stride is_contiguous",
    "storage_offset": "storage_offset",
    "requires_grad": "requires_grad",
    "is_leaf": "is_leaf",
    "ndim": "ndim dim ndimension",
    "dtype": "dtype itemsize element_size is_floating_point is_complex is_signed layout is_sparse "
    "is_quantized is_mkldnn is_nested is_conj is_neg is_sparse_csr",
    "device": "device get_device is_cuda is_cpu is_meta is_mps is_xpu is_xla is_ipu is_maia "
    "is_mtia is_vulkan",
}

# From a property or method to the aspect of the inputs that its result depends on.
ASPECTS = {
    question: aspect for aspect, questions in _BY_ASPECT.items() for question in questions.split()
}

# What differs in each run, also for a parameter or another constant, and how it is refused.
OF_EACH_RUN = {"grad": "grad", "_version": "_version", "__repr__": "repr()"}

# What autograd knows of a tensor when the graph runs, what is told to autograd alone, its elements,
# and what is a fact of its memory.
REFUSED = frozenset(
    (
        *("grad", "grad_fn", "backward", "register_hook", "numpy"),
        *("data_ptr", "_cdata", "_version", "is_set_to", "storage_type"),
        *("is_shared", "is_inference", "output_nr"),
    )
)

# Functions and methods whose results are not values of the graph.
OF_PYTORCH = frozenset(
    [
        "get_default_device",
        "result_type",
        "promote_types",
        "can_cast",
        "is_tensor",
        "broadcast_shapes",
        "initial_seed",
        "get_rng_state",
        "is_storage",
        "typename",
        "has_torch_function",
        "is_compiling",
        "__repr__",
        "__format__",
        "__hash__",
        "__reduce_ex__",
        "__deepcopy__",
        "data_ptr",
        "grad_fn",
        "name",
        "names",
        "__dir__",
    ]
)
