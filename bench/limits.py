"""What this machine can do at all, one thing at a time."""

import multiprocessing
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import crc32c

from ports import HOST

CHUNK = bytes(1 << 20)
SECONDS = 0.4


def loopback_mb_per_s() -> float:
    """Bytes from one thread to another over loopback TCP, 1 MiB at a time."""
    server = socket.create_server((HOST, 0))
    received = 0

    def drain() -> None:
        nonlocal received
        peer, _ = server.accept()
        buffer = bytearray(1 << 20)
        with peer:
            while count := peer.recv_into(buffer):
                received += count

    thread = threading.Thread(target=drain)
    thread.start()
    start = time.perf_counter()
    with socket.create_connection(server.getsockname()) as sender:
        while time.perf_counter() - start < SECONDS:
            sender.sendall(CHUNK)
    thread.join()
    elapsed = time.perf_counter() - start
    server.close()
    return received / elapsed / 1e6


def round_trips_per_s() -> float:
    """100 bytes to another process and back, over loopback TCP."""
    with socket.create_server((HOST, 0)) as server:
        echo = multiprocessing.get_context("fork").Process(target=_echo, args=[server], daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < SECONDS / 4:
                connection.sendall(CHUNK[:100])
                connection.recv(100, socket.MSG_WAITALL)
                count += 1
            elapsed = time.perf_counter() - start
        echo.join()
    return count / elapsed


def _echo(server: socket.socket) -> None:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        while received := peer.recv(100):
            peer.sendall(received)


def page_cache_write_mb_per_s(directory: Path) -> float:
    """Sequential appends of 1 MiB without a sync."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS:
            os.write(file.fileno(), CHUNK)
            count += 1
        return count * len(CHUNK) / (time.perf_counter() - start) / 1e6


def syncs_per_s(directory: Path) -> float:
    """Appends of 4 KiB, each with its fdatasync."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS:
            os.write(file.fileno(), CHUNK[:4096])
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - start)


def memory_copy_mb_per_s() -> float:
    target = bytearray(len(CHUNK))
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS / 4:
        target[:] = CHUNK
        count += 1
    return count * len(CHUNK) / (time.perf_counter() - start) / 1e6


def checksum_mb_per_s() -> float:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS / 4:
        crc32c.crc32c(CHUNK)
        count += 1
    return count * len(CHUNK) / (time.perf_counter() - start) / 1e6
