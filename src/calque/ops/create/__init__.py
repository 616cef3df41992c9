"""Rules that make tensors: filled ones, random ones, and elements arranged anew."""
