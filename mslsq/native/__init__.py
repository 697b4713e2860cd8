"""Residuals as programs of the processor: text in C++, compiled beside the solve, kept in a folder of the user."""
