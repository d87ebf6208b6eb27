"""The models of the laboratory."""
