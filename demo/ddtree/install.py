# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put DDTREE into an installed SGLang: copy our two files, insert a few lines into three of its own.

usage: install.py SITE_PACKAGES      (run it with the Python of that environment)

A place is found by syntax: the one statement in a scope whose code begins with the given text, so formatting and line
numbers do not matter and no copy of an upstream file is kept. Nothing is written before every place is found. Files are
written new and renamed over: an installed file may be a hard link into uv's cache. A second run changes nothing.
Prints ``changed PATH`` or ``unchanged PATH`` for each file.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = pathlib.Path("sglang", "srt")
OURS = {ENGINE / "speculative" / name: HERE / name for name in ("ddtree_utils.py", "ddtree_worker.py")}


@dataclasses.dataclass(frozen=True)
class Insertion:
    """Lines of ours and their place.

    :param file: path under ``sglang/srt``.
    :param scope: names of the enclosing class and function; empty for any statement of the module.
    :param where: ``before`` or ``after`` the statement.
    :param statement: how the statement begins, as ``ast.unparse`` spells it.
    :param lines: what to insert, indented as the statement is.
    """

    file: str
    scope: tuple[str, ...]
    where: str
    statement: str
    lines: str


INSERTIONS = (
    Insertion("speculative/spec_info.py", ("SpeculativeAlgorithm",), "after", "NGRAM = ", "DDTREE = auto()"),
    # Verify input, result relay and KV layout ask is_ngram(). An is_ddtree() of its own would break plugin algorithms:
    # their registry requires every is_* of the enumeration.
    Insertion(
        "speculative/spec_info.py",
        ("SpeculativeAlgorithm", "is_ngram"),
        "before",
        "return self == ",
        """
        if self == SpeculativeAlgorithm.DDTREE:
            return True
        """,
    ),
    Insertion(
        "speculative/spec_info.py",
        ("SpeculativeAlgorithm", "handle_server_args"),
        "before",
        "if self.is_dflash():",
        """
        if self == SpeculativeAlgorithm.DDTREE:
            from sglang.srt.speculative.ddtree_utils import handle_ddtree

            handle_ddtree(server_args)
            return
        """,
    ),
    Insertion(
        "speculative/spec_info.py",
        ("SpeculativeAlgorithm", "create_worker"),
        "before",
        "if self.is_dflash():",
        """
        if self == SpeculativeAlgorithm.DDTREE:
            from sglang.srt.speculative.ddtree_worker import DDTreeWorker

            return DDTreeWorker
        """,
    ),
    # One field gives the command line flag, the configuration key and the entry in /server_info.
    Insertion(
        "arg_groups/fields/spec.py",
        (),
        "after",
        "speculative_num_draft_tokens:",
        """
        speculative_ddtree_budget: A[
            Optional[int],
            Arg(help="Nodes of DDTREE's draft tree, the root not counted.", resolvable=True),
        ] = None
        """,
    ),
    # Each step may allocate twice the tree beyond the last token, at every page size.
    Insertion(
        "mem_cache/allocation_sizing.py",
        ("get_req_to_token_extra_context_len",),
        "before",
        "if page_size > 1 or spec_algo.is_uno():",
        """
        if spec_algo == SpeculativeAlgorithm.DDTREE:
            extra = max(extra, get_alloc_reserve_per_decode())
        """,
    ),
)


def statements(tree: ast.AST, scope: tuple[str, ...]) -> list[ast.stmt]:
    """Return all statements inside the class or function named by ``scope``; none if that does not exist."""
    for name in scope:
        inside = [node for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name]
        if len(inside) != 1:
            return []
        tree = inside[0]
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node is not tree]


def insert(text: str, edit: Insertion) -> str:
    """Return ``text`` with the lines inserted; the same text if they are there.

    :raises LookupError: the place was not found, or more than once.
    """
    lines = textwrap.dedent(edit.lines).strip("\n").splitlines()
    found = statements(ast.parse(text), edit.scope)
    ours = ast.unparse(ast.parse("\n".join(lines)))
    if any(ast.unparse(statement) == ours for statement in found):
        return text
    places = [statement for statement in found if ast.unparse(statement).startswith(edit.statement)]
    if len(places) != 1:
        raise LookupError(
            f"sglang/srt/{edit.file}: {len(places)} statements of {'.'.join(edit.scope) or 'the module'} begin with"
            f" {edit.statement!r}, expected one. This SGLang differs from the one DDTREE was written for:"
            " install that version, or adapt INSERTIONS."
        )
    place = places[0]
    at = place.lineno - 1 if edit.where == "before" else place.end_lineno
    whole = text.splitlines(keepends=True)
    end = "\r\n" if whole[place.lineno - 1].endswith("\r\n") else "\n"
    indent = " " * place.col_offset
    whole[at:at] = [(indent + line if line else "") + end for line in lines]
    return "".join(whole)


def edited(site_packages: pathlib.Path) -> dict[pathlib.Path, bytes]:
    """Return the wanted content of every file, by path under ``site_packages``."""
    wanted = {path: source.read_bytes() for path, source in OURS.items()}
    for edit in INSERTIONS:
        path = ENGINE / edit.file
        current = wanted[path] if path in wanted else (site_packages / path).read_bytes()
        wanted[path] = insert(current.decode(), edit).encode()
    return wanted


def replace(path: pathlib.Path, content: bytes) -> bool:
    """Write ``content`` new and rename it over ``path``, keeping its mode; return whether anything changed."""
    exists = path.exists()
    if exists and path.read_bytes() == content:
        return False
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.chmod(path.stat().st_mode & 0o7777 if exists else 0o644)
    os.replace(part, path)
    return True


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: install.py SITE_PACKAGES")
    site_packages = pathlib.Path(arguments[0])
    try:
        wanted = edited(site_packages)
    except (LookupError, FileNotFoundError) as error:
        sys.exit(f"DDTREE is not installed, nothing was written: {error}")
    for path, content in sorted(wanted.items()):
        print("changed" if replace(site_packages / path, content) else "unchanged", path)


if __name__ == "__main__":
    main(sys.argv[1:])
