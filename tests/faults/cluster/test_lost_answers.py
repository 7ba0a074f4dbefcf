"""Answers to produces that were taken, and that never arrive."""

import contextlib
import random
import time
from pathlib import Path

import pytest

from compat.lossy_proxy import LossyProxy
from ports import HOST, free_port

from .broker_cluster import BROKERS, broker_cluster
from .scenario import scenario

pytestmark = pytest.mark.long


def test_r13_one_in_ten_answers_is_lost(tmp_path: Path, histories: Path) -> None:
    seed = random.randrange(2**32)
    ports = {node_id: free_port() for node_id in range(1, BROKERS + 1)}
    bootstrap = ",".join(f"{HOST}:{port}" for port in ports.values())
    with (
        broker_cluster(tmp_path, advertised=lambda node_id, _: f"{HOST}:{ports[node_id]}") as cluster,
        contextlib.ExitStack() as stack,
    ):
        proxies = [
            stack.enter_context(LossyProxy(port, cluster[node_id].port, seed + node_id))
            for node_id, port in ports.items()
        ]
        with scenario(cluster, "R13 10 % of the answers lost", histories, bootstrap=bootstrap) as run:
            time.sleep(20)
            lost = sum(proxy.lost_count for proxy in proxies)
            run.notes.append(f"{lost} answers lost ({seed=})")
        assert lost > 100
