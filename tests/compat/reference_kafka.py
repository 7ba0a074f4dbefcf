"""A real Apache Kafka, one node, from the jars that the suite has anyway: what "right" looks like.

    cd tests && ../.venv/bin/python -m compat.reference_kafka

prints the variables that make the suite run against it, and runs until Ctrl-C. The suite stops the broker in order to
read its files; they stay until Ctrl-C.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ports import HOST, free_port, wait_until_open

from .parts import java

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"  # Any 16 bytes in URL-safe base64.


def server_properties(directory: Path, port: int, controller_port: int) -> str:
    return f"""
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}
advertised.listeners=PLAINTEXT://{HOST}:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={HOST}:{controller_port}
log.dirs={directory}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.num.partitions=2
auto.create.topics.enable=false
"""


def main() -> None:
    for ending in (signal.SIGINT, signal.SIGTERM):  # In the background, a shell has SIGINT ignored.
        signal.signal(ending, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="reference-kafka-") as name:
        directory = Path(name)
        port = free_port()
        properties = directory / "server.properties"
        properties.write_text(server_properties(directory, port, free_port()))
        form = ["format", "--standalone", "--cluster-id", CLUSTER_ID, "--config", str(properties)]
        subprocess.run([*java.program("kafka.tools.StorageTool"), *form], check=True, stdout=subprocess.DEVNULL)
        kafka = subprocess.Popen([*java.program("kafka.Kafka"), str(properties)], stdout=subprocess.DEVNULL)
        try:
            if not wait_until_open(port, lambda: kafka.poll() is None, timeout_s=60):
                sys.exit("Kafka did not start")
            print(f"PENSTOCK_COMPAT_BOOTSTRAP={HOST}:{port}")
            print(f"PENSTOCK_COMPAT_DATA={directory}/data")
            print(f"PENSTOCK_COMPAT_PID={kafka.pid}", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            kafka.terminate()
            kafka.wait()


if __name__ == "__main__":
    main()
