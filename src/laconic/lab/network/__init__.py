"""Ranks on hosts of their own behind slow links, and what is timed there."""
