"""Kernels. Importing the package settles what they are compiled for, before any of its modules declares one."""

from neuronserve.server.kernels.isa.target import use_target

use_target()
