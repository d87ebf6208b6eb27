"""The wire: how a payload becomes bytes and how bytes from outside are checked before use."""

from laconic.wire.header import HEADER_BYTES, Header, read_headers
from laconic.wire.message import Message, entry_bytes, fixed_bytes, message_bytes, pack, unpack

__all__ = [
    "HEADER_BYTES",
    "Header",
    "Message",
    "entry_bytes",
    "fixed_bytes",
    "message_bytes",
    "pack",
    "read_headers",
    "unpack",
]
