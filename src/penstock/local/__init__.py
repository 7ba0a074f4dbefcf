"""What a cluster on one machine needs beside the broker: a real ZooKeeper, for development and tests."""
