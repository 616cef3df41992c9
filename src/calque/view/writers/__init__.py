"""Writers from a `ViewGraph` to each format, and the table of file extensions."""
