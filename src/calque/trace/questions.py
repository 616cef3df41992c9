"""Questions about a tensor that its abstract value answers, and what each answer depends on."""

_BY_ASPECT = {
    "shape": "shape size numel nelement stride is_contiguous nbytes storage_offset is_same_size",
    "ndim": "ndim dim ndimension",
    "dtype": "dtype itemsize element_size is_floating_point is_complex is_signed layout is_sparse "
    "is_quantized is_mkldnn is_nested is_conj is_neg is_sparse_csr",
    "device": "device get_device is_cuda is_cpu is_meta is_mps is_xpu is_xla is_ipu is_maia "
    "is_mtia is_vulkan",
}

# From the question, a property or a method, to the aspect of the inputs that it depends on.
ASPECTS = {
    question: aspect for aspect, questions in _BY_ASPECT.items() for question in questions.split()
}

# What a program may ask PyTorch itself, without a tensor; the answer is not part of the graph.
OF_PYTORCH = frozenset(
    [
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "get_default_dtype",
        "get_default_device",
        "is_autocast_enabled",
        "get_autocast_dtype",
        "result_type",
        "promote_types",
        "can_cast",
        "is_tensor",
        "broadcast_shapes",
        "manual_seed",
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
        "grad",
        "grad_fn",
        "is_leaf",
        "requires_grad",
        "name",
        "names",
        "__dir__",
    ]
)
