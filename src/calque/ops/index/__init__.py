"""Rules that read and write at positions: indexing, gather, scatter, masks, embedding."""
