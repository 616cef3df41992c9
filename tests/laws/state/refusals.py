"""What is refused: by mode and a part of the message, the names of the programs.

`python -m tests.laws.state --mode trace --refusals` prints what is refused now in this form.
"""

_REFUSED: dict[str, dict[str, str]] = {
    "jit": {
        "is read as a Python number": """
            bare_except_around_an_if check_that_a_caller_catches
            context_manager_function_that_swallows
            error_raised_as_another error_that_is_formatted error_that_is_stored
            except_around_an_assert except_around_iteration_in_a_module
            except_base_exception_around_float except_exception_around_item except_group
            except_in_a_helper_of_another_module except_in_a_library_that_formats
            exit_stack_that_swallows exit_that_returns_true
            getattr_with_a_default_over_a_property hasattr_over_a_property
            retry_with_a_smaller_part return_in_finally suppress_around_int
            swallowed_by_the_caller_of_a_nested_function swallowed_in_a_hook
            swallowed_in_the_backward
        """,
        "is changed by the backward pass of a result": """
            backward_outside_that_counts backward_outside_with_a_hook_that_draws
            backward_outside_with_a_hook_that_takes_items
        """,
        "is written to by the backward pass of a result": """
            backward_outside_with_a_hook_that_writes
            backward_outside_with_a_hook_that_writes_what_was_written
        """,
        "that calque.jit cannot make anew at each call, so that it would get no gradient": """
            module_made_with_a_hook_over_itself
        """,
        "is made and kept (in a cache, say) by the backward pass of a result": """
            backward_outside_with_a_hook_that_makes_a_table
        """,
        "a forward hook with always_call=True has to run": """
            forward_hook_that_always_runs
        """,
        "is copied to the CPU": """
            except_runtime_error_around_tolist fallback_of_a_conversion
        """,
        "is used as an index whose number of positions": """
            except_around_a_boolean_index
        """,
        "returns a shape that depends on values": """
            except_around_nonzero_and_unique
        """,
        "draws random numbers": """
            generator_of_pytorch_on_the_cpu
        """,
    },
    "trace": {
        "which a graph would not repeat": """
            a_meter_of_sizes a_mutable_default append_of_a_shape append_of_a_string
            append_of_a_tensor attribute_of_a_tensor_is_set attributes_of_a_result_that_is_kept
            auxiliary_losses_in_a_dict auxiliary_losses_in_a_list
            bytearray_written cache_by_shape cache_of_keys_that_grows
            callback_that_disables_itself causal_mask_cached_by_length class_attribute_written
            clear_of_a_buffer counter_in_a_global counter_in_a_nonlocal del_of_an_item
            deque_rotated deque_with_maxlen discard_and_update_of_a_set early_stopping_flag
            entry_counted_in_a_dict environment_kept_between_rollouts
            exploration_rate_that_decays extend_and_insert function_attribute_written
            heap_pushed_and_popped history_of_a_module history_of_losses_in_a_dict_of_lists
            iterator_class_of_the_user module_that_keeps_its_last_input_shape
            moving_averages_in_a_dict pop_of_a_key_that_is_there_once
            pop_of_what_is_to_be_done recurrent_state_kept_between_calls replay_buffer_of_tuples
            reverse_of_a_list rollout_of_a_policy rotary_tables_made_at_first
            running_mean_of_batch_sizes running_mean_that_is_not_read
            running_statistics_started_at_first seed_drawn_for_pytorch
            slice_assignment_of_a_default sort_of_a_list swap_of_two_items
            writer_with_a_global_step
        """,
        "draws a number while tracing": """
            choice_and_shuffle drop_a_layer_at_random legacy_random_of_numpy
            random_crop_of_python random_of_python
        """,
        "is turned into a number": """
            except_base_exception_around_float return_in_finally suppress_around_int
        """,
        "is printed or formatted": """
            except_in_a_library_that_formats
        """,
        "is iterated, but its length is not known": """
            except_runtime_error_around_tolist
        """,
        "is passed to len()": """
            except_around_nonzero_and_unique
        """,
        "traced with": """
            a_dict_argument_loses_a_key a_dict_argument_that_is_filled
            a_list_argument_that_grows an_item_of_a_nested_argument
            cache_that_is_a_list_argument generator_that_is_sent_values integers_of_shapes
            tokens_in_a_vocabulary_that_grows
        """,
        "writes to a tensor that is neither an input nor part": """
            cache_of_fixed_size_with_a_position cache_with_a_position_that_is_a_tensor
            metric_with_a_confusion_matrix ring_of_a_replay_buffer
        """,
    },
}

_REFUSED["rows"] = _REFUSED["jit"]

REFUSALS: dict[tuple[str, str], str] = {
    (name, mode): fragment
    for mode, rows in _REFUSED.items()
    for fragment, names in rows.items()
    for name in names.split()
}


def fragment_of(message: str) -> str:
    """The part of a message that is listed, or its first line."""
    known = (fragment for rows in _REFUSED.values() for fragment in rows)
    return next((part for part in known if part in message), message.split("\n")[0])


_OF_STATE: dict[tuple[str, str], str] = {
    ("jit", ""): """
        generator_that_is_returned
    """,
    ("jit", "which would run in only one call"): """
        coroutine_that_is_returned
    """,
    ("rows", ""): """
        generator_that_is_returned
    """,
    ("rows", "which would run in only one call"): """
        coroutine_that_is_returned
    """,
    ("trace", ""): """
        diffusion_step_with_a_table
    """,
    ("trace", "compares them with `is`"): """
        identity_of_arguments
    """,
    ("trace", "reads the state of random numbers"): """
        random_state_that_is_only_read
    """,
    ("trace", "which a graph cannot hold"): """
        an_object_argument_that_is_changed fallback_of_a_conversion
    """,
    ("trace", "which cannot be pickled"): """
        generator_that_is_returned
    """,
    ("trace", "which a graph would not repeat"): """
        move_to_end_of_an_ordered_dict
        a_mutable_keyword_default a_new_object_at_each_call
        a_random_generator_of_ones_own a_tensor_kept_on_an_object add_to_a_set
        attribute_deleted attribute_made_at_first batches_of_a_loader
        cache_of_the_module context_variable_set counter_on_an_object_that_grows
        counter_on_an_object_that_wraps counter_updated
        default_dict_filled_by_reading default_dict_of_lists
        enum_advanced generator_that_is_sent_values
        input_of_the_user iterator_with_a_default lines_of_a_file
        map_over_a_shared_iterator next_of_a_count next_of_a_cycle
        next_of_a_generator next_of_an_iterator_of_a_list
        noise_from_numpy_as_a_tensor only_the_auxiliary_loss_is_used
        random_generator_of_numpy random_state_of_numpy_in_an_attribute slot_written
        stochastic_depth_in_a_module text_stream_in_memory text_written_to_memory
        features_gathered_by_hooks features_kept_by_a_hook
        the_last_tensor_is_read_by_the_next_call the_result_is_the_kept_tensor
        time_since_the_last_call warn_once
        zip_and_enumerate_and_chain
    """,
    ("trace", "cannot be part of a graph"): """
        results_of_inference_mode
    """,
    ("trace", "changes"): """
        default_dtype_left_changed exception_stored
    """,
    ("trace", "is written to"): """
        array_of_numpy_written
    """,
    ("trace", "is called while tracing"): """
        clock_and_date clocks_with_nanoseconds file_that_exists_or_not
        main_thread_interrupted names_that_are_unique random_bytes_of_the_system
        signal_raised signal_sent_to_the_thread
    """,
    ("trace", "is used"): """
        file_that_is_rewritten path_that_is_read
    """,
    ("trace", "the program returns"): """
        closure_returned function_returned subclass_of_dict_as_result
        subclass_of_list_with_attributes
    """,
}
"""What changes Python state, or differs from call to call: a graph cannot do it."""

REFUSALS |= {
    (name, mode): part for (mode, part), names in _OF_STATE.items() for name in names.split()
}
