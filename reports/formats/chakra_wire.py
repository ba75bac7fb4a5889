"""The few rules of protobuf's wire format that a Chakra trace needs: writing only, fields in order of their numbers.

A field is a varint key (number, wire type) and its value. As in proto3, a field that has its default value is not
written, except the members of a oneof, whose presence says which one is set.
"""

import struct
from collections.abc import Iterable, Sequence

VARINT, FIXED64, BYTES = 0, 1, 2  # wire types


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers are not needed here."""
    assert value >= 0
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def key(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def member_uint(number: int, value: int) -> bytes:
    """A member of a oneof: any unsigned number, a signed one that is not negative, or a bool."""
    return key(number, VARINT) + varint(value)


def member_double(number: int, value: float) -> bytes:
    return key(number, FIXED64) + struct.pack("<d", value)


def member_bytes(number: int, value: bytes) -> bytes:
    return key(number, BYTES) + varint(len(value)) + value


def uint(number: int, value: int) -> bytes:
    return member_uint(number, value) if value else b""


def text(number: int, value: str) -> bytes:
    return member_bytes(number, value.encode()) if value else b""


def packed(number: int, values: Sequence[int]) -> bytes:
    """A repeated field of numbers."""
    return member_bytes(number, b"".join(map(varint, values))) if values else b""


def delimited(messages: Iterable[bytes]) -> Iterable[bytes]:
    """A stream of messages, each behind its length."""
    for message in messages:
        yield varint(len(message))
        yield message
