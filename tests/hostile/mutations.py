"""Damage to a frame, from a seed: what a broken or hostile client would send."""

import struct
from random import Random

from .client import request_frame
from .samples import SERVED, sample

EXTREMES = [
    b"\xff", b"\x7f", b"\x80", b"\x00", b"\xff\xff", b"\x7f\xff", b"\x80\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80\x01", b"\xff" * 11, b"\x00\x00\x00\x01", b"\x00" * 16, b"\xc3\x28", b"\xed\xa0\x80",
]  # fmt: skip
HEADER_FRAMES = 0.1  # Of all damaged frames: the rest keeps key and version, or hardly any would get past them.


class Mutator:
    def __init__(self, seed: int, topic: str = "samples") -> None:
        self._random = Random(seed)
        self._frames = [request_frame(key, version, sample(key, version, topic)) for key, version in SERVED]

    def frame(self) -> bytearray:
        """One damaged frame."""
        random = self._random
        frame = bytearray(random.choice(self._frames))
        first = 0 if random.random() < HEADER_FRAMES else 4
        for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
            frame = self._damage(frame, first)
        return frame

    def _damage(self, frame: bytearray, first: int) -> bytearray:
        random = self._random
        if len(frame) <= first + 1:
            return frame + bytes(4)
        place = random.randrange(first, len(frame))
        match random.randrange(8):
            case 0:
                frame[place] ^= 1 << random.randrange(8)
            case 1:
                frame[place] = random.randrange(256)
            case 2:
                extreme = random.choice(EXTREMES)
                frame[place : place + len(extreme)] = extreme
            case 3:
                extreme = random.choice(EXTREMES)
                frame[place:place] = extreme
            case 4:
                del frame[place : place + random.randint(1, 8)]
            case 5:
                del frame[place:]
            case 6:
                piece = frame[place : place + random.randint(1, 64)]
                frame[place:place] = piece * random.choice((1, 2, 50))
            case 7:
                other = random.choice(self._frames)
                start = random.randrange(len(other))
                frame[place:] = other[start:]
        return frame


def framed(frame: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(frame)) + frame
