# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for triton on a host without a GPU.

SGLang defines hundreds of triton kernels at import and launches none on the CPU, so every name of
every ``triton.*`` module resolves to a placeholder: a decorator that returns the function, a
type, or a value that swallows operators. It saves 900 MB. Asking for a driver fails, as it does
without a GPU, so that torch never takes triton for usable.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import typing as t

__version__ = "3.8.0+standin"
__path__: list[str] = []  # a package, so that the finder below is asked for its modules


class Placeholder:
    """Stands for a decorator, a type's instance or a constant of triton."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: t.Any, **kwargs: object) -> t.Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str) -> Placeholder:
        if name == "active":
            raise RuntimeError("the triton stand-in has no driver")
        return _resolve(name, Placeholder())

    def __getitem__(self, key: object) -> Placeholder:
        return self

    def __or__(self, other: object) -> Placeholder:
        return self

    __ror__ = __or__

    def __iter__(self) -> t.Iterator[t.Any]:
        return iter(())

    def __mro_entries__(self, bases: tuple[t.Any, ...]) -> tuple[type, ...]:
        return (object,)


def _resolve(name: str, value: t.Any) -> t.Any:
    """Return ``value`` for any name but a dunder, which Python and inspect probe for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return value


def __getattr__(name: str) -> t.Any:
    """Resolve a module's name: capitalised ones are types (used in annotations and isinstance)."""
    return _resolve(name, type(name, (Placeholder,), {}) if name[0].isupper() else Placeholder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every ``triton.*`` module, empty but for the names above."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        inside = fullname.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if inside else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = __getattr__


sys.meta_path.insert(0, _Finder())
