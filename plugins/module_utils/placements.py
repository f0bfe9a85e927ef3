# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model is spread over GPUs, and which ports an instance takes besides its own: what cannot work is named before anything stops."""

from __future__ import annotations

import typing as t

from .architectures import text_config
from .findings import ERROR, WARNING, Finding

Row = t.Mapping[str, t.Any]

#: The highest TCP port.
HIGHEST = 65535
#: What the port is for that the instance's option names.
_OWN = "port"


def spread(degrees: t.Mapping[str, int], facts: Row, subject: str) -> list[Finding]:
    """How many GPUs are asked for against how many there are to use.

    :param degrees: see architectures.degrees; :param facts: without the GPUs that the instance does not use.
    """
    count = sum(len((one.get("mig") or {}).get("devices") or [one]) for one in facts["devices"])
    needed = degrees["gpus"]
    if not facts["devices"] or needed == count:
        return []
    how = " x ".join("%s %d" % (name, degrees[name]) for name in ("tensor", "pipeline", "data") if degrees.get(name, 1) > 1) or "tensor 1"
    if needed > count:
        fix = "set tensor_parallel (and data_parallel, pipeline_parallel) so that they make %d at most, or name more gpus" % count
        message = "the model is spread over more GPUs than the instance may use"
        return [Finding("parallel.gpus", ERROR, subject, message, "%d GPUs (%s)" % (needed, how), "%d at most" % count, fix=fix)]
    message = "some of the GPUs that the instance holds have nothing to do"
    fix = "set tensor_parallel: %d, or gpus to the %d that it needs" % (count, needed)
    return [Finding("parallel.idle", WARNING, subject, message, "%d of %d used (%s)" % (needed, count, how), "all of them", fix=fix)]


def divides(described: t.Mapping[str, Row], degrees: t.Mapping[str, int], subject: t.Callable[[str], str]) -> list[Finding]:
    """Whether heads and experts of model and draft can be shared out.

    :param described: by part, see modelfiles.describe; :param subject: names an option.
    """
    found = []
    tensor = degrees["tensor"]
    if tensor % degrees["attention"]:
        message = "attention cannot be data parallel over this many GPUs"
        fix = "use a data parallelism of attention that divides %d" % tensor
        listed = "a divisor of %d" % tensor
        found.append(Finding("parallel.attention", ERROR, subject("data_parallel"), message, str(degrees["attention"]), listed, fix=fix))
    ranks = max(tensor // degrees["attention"], 1)
    for part, one in described.items():
        text = text_config(one.get("config") or {})
        heads, shared = text.get("num_attention_heads"), text.get("num_key_value_heads")
        if heads and heads % ranks:
            found.append(_uneven(part, "attention heads", heads, ranks, subject("tensor_parallel")))
        elif shared and shared % ranks and ranks % shared:
            found.append(_uneven(part, "key and value heads", shared, ranks, subject("tensor_parallel")))
        experts = next((text[name] for name in ("num_experts", "n_routed_experts", "num_local_experts") if text.get(name)), 0)
        if experts and degrees["expert"] > 1 and experts % degrees["expert"]:
            found.append(_uneven(part, "experts", experts, degrees["expert"], subject("expert_parallel")))
    return found


def _uneven(part: str, what: str, count: int, ranks: int, subject: str) -> Finding:
    fitting = [str(number) for number in range(1, count + 1) if count % number == 0 and number <= 64]
    message = "the %s of the %s cannot be shared out evenly" % (what, part)
    return Finding(
        "parallel.heads",
        ERROR,
        subject,
        message,
        "%d %s over %d GPUs" % (count, what, ranks),
        "a divisor of %d" % count,
        "config.json of the %s" % part,
        fix="use one of: %s" % ", ".join(fitting),
    )


# Where the GPUs are


def near(facts: Row, chosen: Row, count: int, taken: t.Container[str], subject: str) -> list[Finding]:
    """That a model is spread over sockets although one socket has enough GPUs.

    :param facts: of all GPUs; :param chosen: of those of the instance; :param count: how many work on one model.
    :param taken: uuids of those that other instances use.
    """
    topology = facts.get("topology")
    if not topology or not topology["paths"] or count < 2:
        return []
    groups = _sockets(facts["devices"], topology["paths"])
    own = {one["uuid"] for one in chosen["devices"]}
    if len(own) >= len(facts["devices"]) or any(own <= set(group) for group in groups):
        return []
    free = [[uuid for uuid in group if uuid not in taken] for group in groups]
    enough = next((group[: len(own)] for group in free if len(group) >= len(own)), None)
    if not enough:
        return []
    numbers = {one["uuid"]: one["index"] for one in facts["devices"]}
    named = sorted(numbers[uuid] for uuid in enough)
    return [
        Finding(
            "parallel.numa",
            WARNING,
            subject,
            "these GPUs are on several sockets, and as many on one socket are free",
            "GPUs %s" % ", ".join(str(one) for one in sorted(numbers[uuid] for uuid in own)),
            "GPUs of one socket",
            "paths between GPUs: SYS",
            "What goes from socket to socket is slower, and P2P often does not go there at all.",
            "set gpus: [%s]" % ", ".join(str(one) for one in named),
        )
    ]


def _sockets(devices: t.Sequence[Row], paths: t.Sequence[t.Sequence[t.Optional[str]]]) -> list[list[str]]:
    """Groups of uuids that reach each other without leaving their socket."""
    groups: list[list[int]] = []
    for number in range(len(devices)):
        group = next((one for one in groups if paths[one[0]][number] not in ("SYS", None)), None)
        if group is None:
            groups.append([number])
        else:
            group.append(number)
    return [[devices[number]["uuid"] for number in group] for group in groups]


# Ports


def ports(rows: t.Iterable[Row], port: int, config: Row) -> dict[int, str]:
    """Every port that an instance takes, and what for.

    :param rows: of the engine in the table's ``ports``; :param config: its arguments.
    """
    found = {port: _OWN}
    for row in rows:
        value = config.get(row["option"])
        if not value or any(config.get(one) for one in row.get("unless", ())):
            continue
        first = port + row["after"] if "after" in row else value if row.get("value") == "option" else row["value"]
        if isinstance(first, int):
            found.update({first + number: row["why"] for number in range(row.get("count", 1)) if first + number not in found})
    return found


def port_text(port: int, why: str) -> str:
    """A port of :func:`ports`, for a person."""
    return "port %d" % port if why == _OWN else "port %d (%s)" % (port, why)


def clashes(taken: t.Mapping[str, t.Mapping[int, str]], subject: t.Callable[[str], str]) -> list[Finding]:
    """Ports that two instances of a host take, and ports that are none.

    :param taken: per instance, see :func:`ports`; two that are its own port are refused elsewhere (schema.instances).
    """
    found = []
    seen: dict[int, tuple[str, str]] = {}
    for name, own in taken.items():
        beyond = sorted(port for port in own if port > HIGHEST)
        if beyond:
            message = "the engine would take a port that there is not"
            fix = "use a port of %d or less" % (HIGHEST - (max(beyond) - min(own)))
            found.append(
                Finding("port.range", ERROR, subject(name), message, "%d (%s)" % (beyond[-1], own[beyond[-1]]), "<= %d" % HIGHEST, fix=fix)
            )
        for port, why in sorted(own.items()):
            other = seen.setdefault(port, (name, why))
            if other[0] != name and (why, other[1]) != (_OWN, _OWN):
                message = "takes a port that instance %s takes, too" % other[0]
                both = "%d: %s of %s, %s of %s" % (port, why, name, other[1], other[0])
                fix = "move port of one of them by more than %d" % max(one - min(own) for one in own)
                found.append(Finding("port.twice", ERROR, subject(name), message, both, "ports of its own", fix=fix))
                break
    return found
