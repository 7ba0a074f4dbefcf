"""Hosts of our own: one network namespace for each, on one machine, and links between them that can be cut.

The thread that opens them is put into a namespace of its own, and with it every client and process that it starts from
then on: that is the hub, through which the hosts reach each other. No packet can leave, for there is no way out. A link
is cut by a routing rule of the hub that drops what goes from one address to another, silently and in one direction.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Hosts:
    """Hosts 1 to N. Use `open_hosts`."""

    def __init__(self, count: int) -> None:
        self.numbers = range(1, count + 1)
        self._holders: dict[int, subprocess.Popen[bytes]] = {}  # A process that does nothing but be in the namespace.
        self._cuts: set[tuple[str, str]] = set()

    def address(self, number: int) -> str:
        """Of a host."""
        return f"10.77.{number}.2"

    def hub_address(self, number: int) -> str:
        """Of us, as the host sees us."""
        return f"10.77.{number}.1"

    def wrapper(self, number: int) -> list[str]:
        """What goes in front of a command that is to run on the host. It becomes that command."""
        return ["nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net", "--"]

    # Links

    def cut(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Drop everything between these hosts, in both directions."""
        for source in one:
            for target in other:
                self.drop(source, target)
                self.drop(target, source)

    def drop(self, source: int, target: int) -> None:
        """Drop everything that host `source` sends to host `target`."""
        self._drop(self.address(source), self.address(target))

    def pass_again(self, source: int, target: int) -> None:
        self._pass(self.address(source), self.address(target))

    def isolate(self, number: int) -> None:
        """Cut the host off from the others, the clients and ZooKeeper."""
        self.cut([number], [other for other in self.numbers if other != number])
        self._drop(self.address(number), self.hub_address(number))

    def heal(self) -> None:
        for source, target in sorted(self._cuts):
            self._pass(source, target)

    def _drop(self, source: str, target: str) -> None:
        if (source, target) not in self._cuts:
            _ip("rule", "add", "preference", "10", "from", source, "to", target, "blackhole")
            self._cuts.add((source, target))

    def _pass(self, source: str, target: str) -> None:
        _ip("rule", "delete", "from", source, "to", target, "blackhole")
        self._cuts.remove((source, target))

    # Set up

    def open(self) -> None:
        _ip("link", "set", "lo", "up")
        # What is for the hub itself must go past our rules, too, and the rule for that comes before all others.
        _ip("rule", "add", "preference", "100", "lookup", "local")
        _ip("rule", "delete", "preference", "0")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number in self.numbers:
            self._open_host(number)

    def _open_host(self, number: int) -> None:
        # It says when it is there, and ends with us: its standard input closes.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read never"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders[number] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n", "no namespace for a host"
        link = f"host{number}"
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("address", "add", f"{self.hub_address(number)}/24", "dev", link)
        _ip("link", "set", link, "up")
        for words in (
            "link set lo up",
            f"address add {self.address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.hub_address(number)}",
        ):
            _run([*self.wrapper(number), "ip", *words.split()])

    def close(self) -> None:
        for holder in self._holders.values():
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            for pipe in (holder.stdin, holder.stdout):
                assert pipe is not None
                pipe.close()


@contextlib.contextmanager
def open_hosts(count: int) -> Iterator[Hosts]:
    """Hosts, and this thread at their hub until the end. OSError where namespaces or `ip` cannot be had."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(_libc.unshare(_CLONE_NEWNET))
        hosts = Hosts(count)
        try:
            hosts.open()
            yield hosts
        finally:
            hosts.close()
            _check(_libc.setns(outside, _CLONE_NEWNET))
    finally:
        os.close(outside)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
