# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role documents what it takes: ``meta/argument_specs.yml`` and ``defaults/main.yml`` agree.

For the entry point ``main`` both hold the same keys with the same values, but that a required
argument has no default. Other entry points need a specification too.
"""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"


class Loader(yaml.SafeLoader):
    """YAML with Ansible's ``!unsafe``, which keeps a template in a specification from being evaluated."""


Loader.add_constructor("!unsafe", Loader.construct_scalar)


def load(path: Path) -> dict[str, t.Any]:
    """A YAML file's mapping; empty where there is no file."""
    return (yaml.load(path.read_text(), Loader) or {}) if path.exists() else {}


def entry_points(role: Path) -> set[str]:
    """The task files that a playbook may name: all but those that only others include (``_name.yml``)."""
    return {path.stem for path in (role / "tasks").glob("*.yml") if not path.stem.startswith("_")}


def faults(role: Path) -> t.Iterator[str]:
    """What is wrong with one role, a line each."""
    specs = load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
    for entry in sorted(entry_points(role) - set(specs)):
        yield "tasks/%s.yml has no argument_specs (name it _%s.yml if only this role includes it)" % (entry, entry)
    for entry in sorted(set(specs) - entry_points(role)):
        yield "argument_specs names the entry point %s, tasks/%s.yml is not there" % (entry, entry)
    options, defaults = specs.get("main", {}).get("options", {}), load(role / "defaults" / "main.yml")
    for name in sorted(set(defaults) - set(options)):
        yield "%s has a default and no argument_specs" % name
    for name, option in sorted(options.items()):
        if name not in defaults:
            if not option.get("required"):
                yield "%s is in argument_specs, not required, and has no default" % name
        elif option.get("required"):
            yield "%s is required and has a default" % name
        elif "default" not in option or (type(option["default"]), option["default"]) != (type(defaults[name]), defaults[name]):
            yield "%s: defaults/main.yml has %r, argument_specs %r" % (name, defaults[name], option.get("default", "nothing"))


def main() -> int:
    """Print what is wrong in all roles; 1 if anything is."""
    roles = sorted(path for path in ROLES.iterdir() if path.is_dir()) if ROLES.is_dir() else []
    found = ["roles/%s: %s" % (role.name, fault) for role in roles for fault in faults(role)]
    print("\n".join(found) or "%d roles agree with their specifications" % len(roles))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
