"""Joins a group, says so, and does nothing more: to be killed. Arguments: bootstrap servers, topic, group."""

import sys
import time

from clients import consumer_of, next_message

consumer = consumer_of(*sys.argv[1:])
next_message(consumer)
print("joined", flush=True)
time.sleep(60)
