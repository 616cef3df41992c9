"""What is known of a value before it is computed: shapes, dtypes, answers to questions."""
