"""Imported once by the server that ranks are forked from: everything slow to import."""

import torch

import halocast.exec.worker  # noqa: F401
from halocast.models.aggregate import kernels

kernels()  # imports dgl, where there is one
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first optimizer imports torch's compiler, a second's work
