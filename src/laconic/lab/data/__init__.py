"""Data: what there is, where it lies, how it gets there, how it is shared out."""
