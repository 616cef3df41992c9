"""From a `ViewGraph` to each format, a file for each, and a table of the endings of file names."""
