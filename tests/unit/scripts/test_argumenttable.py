# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which arguments a configuration file may hold, read from sources that are written as the engines write theirs."""

from __future__ import annotations

import argumenttable
import engineparsers

PARSER = b"""
class Fields:
    _NS_PATH = "x"
    tp_size: A[int, Arg(help="ranks", aliases=["--tensor-parallel-size"])] = 1
    host: A[str, "where"] = "x"
    hidden: A[int, Arg(no_cli=True)] = 1
    named: A[int, Arg(help="h", cli_name="--other-name")] = 1
    plain: int = 3
    new_name: A[int, "what the old one sets, too"] = 1

class Frontend:
    api_key: list[str] | None = None

def add(parser):
    parser.add_argument("--dtype", "-d", type=str)
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("--gone", action=DeprecatedAction, help="no more")
    parser.add_argument("--old-name", dest="new_name", action=DeprecatedAliasStoreAction)
    parser.add_argument("--old-flag", action=DeprecatedStoreTrueAction)
    group.add_argument("--many", nargs="+", action="append")
"""
BY_PLACE = b"unsupported_actions = {a.dest: a for a in parser._actions}"
BY_NAME = b"def _config_keys(action): ...\n" + BY_PLACE


def names(reader: bytes, whole: tuple[str, ...] = ()) -> set[str]:
    return engineparsers.accepted(engineparsers.parser([PARSER], whole), reader)


def test_a_reader_that_looks_at_places_refuses_the_new_name_and_takes_the_old_one() -> None:
    found = names(BY_PLACE)
    assert {"tp-size", "tensor-parallel-size", "host", "other-name", "dtype", "flag", "old-name"} <= found
    assert not {"new-name", "old-flag", "gone", "hidden", "plain", "named", "many", "api-key"} & found


def test_a_reader_that_looks_at_names_takes_both() -> None:
    found = names(BY_NAME)
    assert {"new-name", "old-name", "dtype"} <= found
    assert not {"old-flag", "gone", "many"} & found


def test_a_reader_that_refuses_nothing_takes_everything_that_the_parser_knows() -> None:
    assert {"gone", "many", "old-flag", "api-key", "host"} <= names(b"", ("Frontend",))
    assert "api-key" not in names(b"")


def test_a_table_that_differs_from_the_parser_is_told() -> None:
    engine = {
        "fixed": {"enable-metrics": True},
        "secrets": {"api_key": "api-key"},
        "memory_share": "share",
        "lanes": {},
        "options": {"overlap": [{"versions": "<2", "name": "sync"}, {"name": "async", "also": {"more": 1}}]},
        "speculative": {"algorithm": "method"},
        "life": {"old": {"until": "2", "instead": "async"}, "sync": {"until": "2", "instead": "async"}},
    }
    known = {"enable-metrics", "api-key", "share", "method", "async", "more"}
    assert argumenttable.differences(engine, "2", known) == []
    assert argumenttable.differences(engine, "1", known) == [
        "sync is written, and not known",
        "old is gone, and the table says otherwise",
        "sync is gone, and the table says otherwise",
    ]
    assert argumenttable.differences(engine, "2", known | {"old"}) == ["old is there, and the table says otherwise"]
    assert argumenttable.differences({**engine, "joined": "spec"}, "2", known) == ["spec is written, and not known"]
