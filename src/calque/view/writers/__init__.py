"""Functions that write a `ViewGraph` in each format, and the table of file extensions."""
