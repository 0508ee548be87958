"""Gradients summed by hand with Open MPI: one all-reduce a step, of all of them in one buffer.

MPI is called by ctypes, for torch's wheels are built without it. The names are those of Open MPI's ABI.
"""
import ctypes

import torch

_IN_PLACE = ctypes.c_void_p(1)


class Mpi:
    def __init__(self):
        self.library = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
        self.call("MPI_Init", None, None)
        self.world = self.known("ompi_mpi_comm_world")

    def known(self, name):
        return ctypes.byref(ctypes.c_char.in_dll(self.library, name))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with code {code}")

    def sum(self, vector):
        """In place, of all ranks; float32."""
        self.call("MPI_Allreduce", _IN_PLACE, ctypes.c_void_p(vector.data_ptr()), vector.numel(),
                  self.known("ompi_mpi_float"), self.known("ompi_mpi_op_sum"), self.world)

    def end(self):
        self.call("MPI_Finalize")


class Averages:
    """Gradients that lie in one buffer: backward adds to them where they are."""

    def __init__(self, mpi, model, ranks):
        parameters = list(model.parameters())
        self.mpi, self.ranks = mpi, ranks
        self.buffer = torch.zeros(sum(parameter.numel() for parameter in parameters))
        for parameter, part in zip(parameters, self.buffer.split([each.numel() for each in parameters])):
            parameter.grad = part.view_as(parameter)

    def clear(self):
        self.buffer.zero_()

    def take(self):
        self.mpi.sum(self.buffer)
        self.buffer /= self.ranks
