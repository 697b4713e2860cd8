"""The part of the build that pyproject.toml cannot say: the kernels in C++ become a library inside the package.

The library has plain C names and is loaded by ctypes, so one wheel serves every version of Python and of PyTorch.
Without a compiler the package is installed all the same, and looks for one again when it first needs the kernels. With
MSLSQ_KERNELS=required the build fails then: a wheel to be given away must bring them.
"""

import os
import runpy
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path(__file__).parent.absolute() / "mslsq" / "kernels"
"""An editable installation puts the library here, so the next one (with other extras, say) need not compile it."""
BUILD: dict[str, Any] = runpy.run_path(str(KERNELS / "build.py"))


def _record(library: str) -> str:
    return str(BUILD["record"](Path(library)))


class BuildKernels(build_ext):
    """Compiles by `mslsq/kernels/build.py`, as the package itself does."""

    def build_extension(self, ext: Extension) -> None:
        try:
            BUILD["build"](Path(self.get_ext_fullpath(ext.name)).absolute(), before=KERNELS / BUILD["NAME"])
        except BUILD["CompilerError"] as error:  # setuptools reports this and goes on without an optional extension
            raise CompileError(str(error)) from error

    # The record of a library's checksum goes where the library goes, into wheels and into editable installations.

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        for built, placed in super().get_output_mapping().items():
            if Path(built).exists():
                self.copy_file(_record(built), _record(placed))

    def get_output_mapping(self) -> dict[str, str]:
        libraries = super().get_output_mapping()
        return libraries | {_record(built): _record(placed) for built, placed in libraries.items()}

    def get_outputs(self) -> list[str]:
        libraries = [str(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        return list(self.get_output_mapping()) if self.inplace else [*libraries, *map(_record, libraries)]

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1], BUILD["NAME"]))


class AnyPython(bdist_wheel):
    """A wheel for one platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


required = os.environ.get("MSLSQ_KERNELS") == "required"
setup(
    ext_modules=[Extension("mslsq.kernels.libmslsq", sources=[], optional=not required)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
