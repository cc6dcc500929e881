"""Functions that exist only inside of the kernels that call them: how Numba compiles those.

Numba takes each function for one that is called from Python: it optimizes it with all that it calls, twice, makes
machine code of it and of two wrappers, and does so again for each function that calls it. Of an inlined function
nothing but its unoptimized form is ever used. So it is typed and lowered, and the rest is done once, in the kernel:
that takes less than half of the time (docs/deploy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _InlinedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function and of what it calls, as it was lowered, for others to link."""

    def finalize(self) -> None:
        """Link what is called, and nothing else."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class InlinedCompiler(Compiler):  # type: ignore[misc]
    """Numba's pipeline up to lowering."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """The function's typed signature and its library."""
        state = self.state
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = _InlinedLibrary(state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        # Python could not call it, but calls of it are typed by this object.
        name, keep_alive = result.fndesc.qualname, (result.library,)
        entry = _dynfunc.make_function(numba, name, "", 0, result.environment, keep_alive)
        state.targetctx.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)
