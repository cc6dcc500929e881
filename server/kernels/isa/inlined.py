"""How Numba compiles functions that exist only inside of the kernels that call them.

Numba assumes that each function is called from Python: it optimizes it with all that it calls, twice, makes machine
code of it and of two wrappers, and repeats that for each function that calls it. Only the unoptimized form of an
inlined function is ever used. So here it is typed and lowered, and the rest is done once, in the kernel: less than half
of the time. Dropping the passes that look for features no kernel uses, and resolving each operator once for its types,
save a quarter of the rest; record offsets as numbers, and no reference counting, a seventh more
(docs/internals/kernels.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import _dynfunc
from numba.core import ir, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass


@register_pass(mutates_CFG=False, analysis_only=False)
class _ConstantFields(FunctionPass):  # type: ignore[misc]
    """Replaces fields of global named tuples, such as the offsets of records, by their numbers."""

    _name = "constant_fields"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Replace them, and return whether there were any."""
        has_changed = False
        for block in state.func_ir.blocks.values():
            body: list[Any] = []
            for statement in block.body:
                if body and _is_field_of(statement, body[-1]):
                    record = body.pop().value.value
                    statement.value = ir.Const(getattr(record, statement.value.attr), statement.loc)
                    state.func_ir._definitions[statement.target.name] = [statement.value]
                    has_changed = True
                body.append(statement)
            block.body = body
        return has_changed


def _is_field_of(statement: Any, before: Any) -> bool:
    """Return whether a statement of Numba's IR reads a field of a named tuple that the statement before has loaded."""
    if not (isinstance(statement, ir.Assign) and isinstance(before, ir.Assign)):
        return False
    value, loaded = statement.value, before.value
    if not (isinstance(value, ir.Expr) and value.op == "getattr" and value.value is before.target):
        return False
    return isinstance(loaded, ir.Global | ir.FreeVar) and value.attr in getattr(loaded.value, "_fields", ())


# Numba's passes, except those for closures, `with`, literal_unroll, inlining before typing, array expressions, and the
# ends of variables, which only reference counts need. Most of those rebuild the function's graph and visit all
# variables of all instructions.
_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    _ConstantFields,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    untyped_passes.DeadBranchPrune,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _InlinedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The lowered code of a function and of the functions it calls, for others to link."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Run Numba's passes with one manager for the module instead of one for each function that it names."""
        ll_module.data_layout = self._codegen._data_layout
        manager, builder = self._codegen._function_pass_manager()
        for function in ll_module.functions:
            if not function.is_declaration:
                manager.run(function, builder)

    def finalize(self) -> None:
        """Link the called functions, and nothing else."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class InlinedCompiler(Compiler):  # type: ignore[misc]
    """Numba's pipeline up to lowering."""

    def define_pipelines(self) -> list[Any]:
        """Return a single pipeline: there is no fallback if it fails."""
        passes = PassManager("inlined")
        for each in _PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Return the function's typed signature and its library."""
        state = self.state
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = _InlinedLibrary(state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        # Python cannot call it, but calls of it are typed by this object.
        name, keep_alive = result.fndesc.qualname, (result.library,)
        entry = _dynfunc.make_function(numba, name, "", 0, result.environment, keep_alive)
        state.targetctx.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)
