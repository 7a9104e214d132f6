"""Simulated CUDA cards: the program `gpumem`, whose commands simulate, predict and fit need no GPU, Toolkit or compiler.

    gpumem simulate --card rtx4090 -- python train.py      (or: python -m gpumem_simulator simulate ...)
"""
import os
import pathlib
import sys

__all__ = ["program"]


def program() -> pathlib.Path:
    """The path of the program `gpumem`."""
    return pathlib.Path(__file__).resolve().parent / "bin" / "gpumem"


def _run():
    os.execv(program(), ["gpumem", *sys.argv[1:]])
