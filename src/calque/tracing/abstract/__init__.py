"""Abstract values: shapes, dtypes and answers that are known before anything is computed."""
