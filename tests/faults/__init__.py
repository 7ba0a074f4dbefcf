"""Faults, on real processes: crashes, full disks, failing syncs, restarts, crowds of clients."""
