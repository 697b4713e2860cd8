"""Recorded graphs of small tensors as native programs."""
