"""Scalar programs as CUDA C: the statements of `native.text`, where a thread has one lane instead of a vector several.

The text (`text`) is compiled by NVRTC (`nvrtc`), in parts where it would spill (`splitting`), launched by the driver
(`driver`), and called as the programs of a processor are (`programs`). Of PyTorch public names suffice.
"""
