"""The laboratory: real tasks on which methods are tried and compared."""
