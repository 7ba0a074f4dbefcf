"""A whole broker in one thread under virtual time: simulated disk, network and crashes, replayable from a seed."""
