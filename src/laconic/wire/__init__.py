"""The wire: how a payload becomes bytes and how bytes from outside are checked before use."""

from laconic.wire.dealing import Deal, Heard, Learnt, Numbers
from laconic.wire.header import HEADER_BYTES, VERSION, Header, read_headers, seal_
from laconic.wire.message import Frame, Message, Packed, pack, unpack
from laconic.wire.parts import Entries, write_parts

__all__ = [
    "HEADER_BYTES",
    "VERSION",
    "Deal",
    "Entries",
    "Frame",
    "Header",
    "Heard",
    "Learnt",
    "Message",
    "Numbers",
    "Packed",
    "pack",
    "read_headers",
    "seal_",
    "unpack",
    "write_parts",
]
