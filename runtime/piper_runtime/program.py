"""Programs: the manifest, kernels and rank programs of a compiled step, from texts or a folder."""

from __future__ import annotations

import hashlib
import json
import linecache
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from uuid import uuid4

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import piper_runtime.ops  # noqa: F401  (kernels call these ops by name)
from piper_runtime.errors import ProgramError
from piper_runtime.manifest import Manifest
from piper_runtime.states.optimizer import OptimizerFactory
from piper_runtime.tensorfile import pack_tensors, tensor_bytes, unpack_tensors

__all__ = ["Program", "chunk", "content_hash", "flatten", "seal", "seal_folder"]

MANIFEST = "manifest.json"
KERNELS = "kernels.py"
CONSTANTS = "constants.safetensors"
Function = TypeVar("Function", bound=Callable[..., Any])


def chunk(*, results: int) -> Callable[[Function], Function]:
    """Mark a function of a rank program as a chunk that returns ``results`` values.

    A value is a tensor, or a tuple of member gradients in bucket order (a pack) that is accumulated
    and not reduced before; what a collective takes is made by ``flatten``. With no results the
    function returns None, with one the value itself, else a tuple.
    """

    def mark(function: Function) -> Function:
        setattr(function, "results", results)  # noqa: B010 (functions have no such attribute)
        return function

    return mark


def flatten(*parts: Tensor, numel: int) -> Tensor:
    """Return the elements of tensors of one dtype one behind the other, then zeros to ``numel``.

    A single tensor of that many is not copied, but viewed.
    """
    missing = numel - sum(part.numel() for part in parts)
    if missing < 0:
        raise ValueError(f"flatten expected at most {numel} elements, got {numel - missing}")
    if len(parts) == 1 and not missing:
        return parts[0].reshape(-1)
    flat = [part.reshape(-1) for part in parts]
    return torch.cat([*flat, parts[0].new_zeros(missing)] if missing else flat)


def content_hash(texts: Mapping[str, str], constants: Mapping[str, Tensor]) -> str:
    """Return the sha256 of all texts and constants: name, NUL, contents, NUL, sorted by name.

    The manifest counts as JSON with sorted keys and without its ``hash``, a constant as its dtype
    and shape, NUL, its elements in row-major order.
    """
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        if name == MANIFEST:
            entries = {key: value for key, value in json.loads(text).items() if key != "hash"}
            text = json.dumps(entries, sort_keys=True)
        digest.update(f"{name}\0{text}\0".encode())
    for name, tensor in sorted(constants.items()):
        digest.update(f"{name}\0{tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor_bytes(tensor) + b"\0")
    return digest.hexdigest()


def seal(texts: Mapping[str, str], constants: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the texts of a program with the hash of what they and the constants are now.

    A program whose hash is another one is refused: whoever changes a text on purpose seals it.
    """
    manifest = json.loads(texts[MANIFEST]) | {"hash": content_hash(texts, constants)}
    return {**texts, MANIFEST: f"{json.dumps(manifest, indent=1)}\n"}


def seal_folder(path: str | Path) -> None:
    """Write the hash of what the files of a program are now into its manifest."""
    texts, constants = _read(Path(path))
    (Path(path) / MANIFEST).write_text(seal(texts, constants)[MANIFEST])


class Program:
    """A compiled step that can run: one text per coordinate, shared kernels, a manifest.

    ``texts`` maps file names of the artifact (``manifest.json``, ``kernels.py``, the rank programs
    and ``ir/*.mlir``) to their contents; ``constants`` maps constant states to their values.
    ``model`` and ``optimizer`` are what a ``Trainer`` of this program takes weights from and makes
    optimizers with unless it is told otherwise; a saved program keeps neither.
    Raises ProgramError for another version, a missing file or contents that differ from the hash.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        *,
        constants: Mapping[str, Tensor] | None = None,
        model: nn.Module | None = None,
        optimizer: OptimizerFactory | None = None,
        path: Path | None = None,
    ) -> None:
        """Check the texts; nothing of them is executed before ``load``."""
        if MANIFEST not in texts:
            raise ProgramError(f"program expected a file {MANIFEST}, got {sorted(texts)}")
        self.texts = dict(texts)
        self.constants = dict(constants or {})
        self.model = model
        self.optimizer = optimizer
        self.path = path
        self.manifest = Manifest.parse(texts[MANIFEST])
        for name in (KERNELS, *self.manifest.programs):
            if name not in texts:
                raise ProgramError(f"program expected a file {name}, got {sorted(texts)}")
        got = content_hash(texts, self.constants)
        if got != self.manifest.hash:
            raise ProgramError(
                f"program expected hash {self.manifest.hash} (its files were changed), got {got}"
            )

    @staticmethod
    def open(path: str | Path) -> Program:
        """Read a compiled directory; raises ProgramError or FileNotFoundError."""
        texts, constants = _read(Path(path))
        return Program(texts, constants=constants, path=Path(path))

    def save(self, path: str | Path) -> None:
        """Write the artifact to a directory, which is made if it does not exist.

        What an older artifact there has and this one has not is removed, other files stay. The
        manifest comes last, and every file at once, so that several processes may write the same.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name in _files_of(folder) - set(self.texts):
            (folder / name).unlink(missing_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        (folder / CONSTANTS).unlink(missing_ok=True)
        if self.constants:
            _write(folder / CONSTANTS, pack_tensors(self.constants))
        for name, text in sorted(self.texts.items(), key=lambda item: item[0] == MANIFEST):
            _write(folder / name, text.encode())

    def load(self, device: torch.device) -> LoadedProgram:
        """Execute the texts as a package with kernels bound to ``device``."""
        return LoadedProgram(self, device)


def _read(folder: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the texts and constants in a folder; raises FileNotFoundError if it has no program."""
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"expected a compiled program with a {MANIFEST}, got {folder}")
    files = [*folder.glob("*.py"), folder / MANIFEST, *folder.glob("ir/*.mlir")]
    texts = {str(file.relative_to(folder)): file.read_text() for file in files}
    file = folder / CONSTANTS
    try:
        return texts, unpack_tensors(file.read_bytes()) if file.is_file() else {}
    except SafetensorError as error:
        raise ProgramError(f"{file} expected the format of safetensors, got {error}") from None


def _write(file: Path, data: bytes) -> None:
    """Write a file at once, so that nobody reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{uuid4().hex}")
    part.write_bytes(data)
    part.replace(file)


def _files_of(folder: Path) -> set[str]:
    """Return the files of the artifact in a folder, if there is one that can be read."""
    try:
        manifest = Manifest.parse((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return set()
    levels = {str(file.relative_to(folder)) for file in folder.glob("ir/*.mlir")}
    return {KERNELS, *manifest.programs, *levels}


class LoadedProgram:
    """The modules of a program, bound to a device."""

    def __init__(self, program: Program, device: torch.device) -> None:
        """Execute kernels and rank programs, in that order."""
        self.manifest = program.manifest
        self._package = f"piper_program_{program.manifest.hash[:16]}"
        package = ModuleType(self._package)
        package.__path__ = [] if program.path is None else [str(program.path)]
        sys.modules[self._package] = package
        kernels = self._execute(program, KERNELS)
        setattr(kernels, "device", device)  # noqa: B010 (a module has no such attribute)
        self.modules = [self._execute(program, name) for name in self.manifest.programs]

    def entry_point(self, coordinate: int, name: str) -> Callable[[Any], None]:
        """Return the function ``name`` of the rank program at ``coordinate``."""
        if name not in self.manifest.entry_points:
            known = list(self.manifest.entry_points)
            raise ProgramError(f"entry point expected one of {known}, got {name!r}")
        function = getattr(self.modules[coordinate], name, None)
        if function is None:
            where = self.manifest.programs[coordinate]
            raise ProgramError(f"{where} expected a function {name!r}, got none")
        return function  # type: ignore[no-any-return]

    def _execute(self, program: Program, file: str) -> ModuleType:
        """Run one text as a module; its lines show in tracebacks and ``inspect``."""
        text, name = program.texts[file], f"{self._package}.{Path(file).stem}"
        where = f"<{self._package}/{file}>" if program.path is None else str(program.path / file)
        if program.path is None:
            linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
        module = ModuleType(name)
        module.__file__ = where
        module.__package__ = self._package
        sys.modules[name] = module
        exec(compile(text, where, "exec"), module.__dict__)  # noqa: S102 (a program is code)
        setattr(sys.modules[self._package], Path(file).stem, module)
        return module
