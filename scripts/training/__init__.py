"""What the experiments of `train.py` are made of: the loop, and one file per experiment."""
