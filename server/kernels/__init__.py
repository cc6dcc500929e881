"""Compiled kernels. Importing the package sets the CPU that they are compiled for, before a module declares one."""

from .isa.target import use_target

use_target()
