"""``python -m laconic``: what the ``laconic`` command does, for launchers that start modules."""

from laconic.cli import main

main()
