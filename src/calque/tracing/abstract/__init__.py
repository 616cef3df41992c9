"""Abstract values: the shapes, dtypes and properties that are known before anything is computed."""
