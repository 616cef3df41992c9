"""Programs that are not yet right, by mode, with what is wrong."""

KNOWN_GAPS: dict[tuple[str, str], str] = {
    ("lines_written_to_a_file", "trace"): "raises AssertionError",
    ("logger_that_counts_lines", "trace"): "a refused call fills a cache of PyTorch's loggers",
    ("logging_handler_that_collects", "trace"): "as logger_that_counts_lines",
    ("setdefault_of_a_dict", "trace"): "differs from eager",
    ("update_of_a_dict", "trace"): "as setdefault_of_a_dict",
    ("swallowed_by_the_caller_of_a_nested_function", "trace"): "names no line",
}
