"""Programs of scalars: what a function of small tensors computes for one block, written as C++ for many blocks at once.

A recorded graph becomes scalars (`recording`), those are differentiated exactly (`derivative`), written as C++ in which
a vector holds one scalar of several blocks (`text`), compiled and called as an operator of PyTorch (`operator`).
Nothing here knows what a residual or a problem is.
"""
