"""Small fits as users would write them, each compared with SciPy and with differences: `python -m user_programs`."""
