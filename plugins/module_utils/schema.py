# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user may write: the variables and the options of an instance, and what is wrong with them.

One table says what exists, of which type, and which values are allowed. Everything that is refused
is refused here, before a host is touched, with the name nearest to what was written.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing as t

from .findings import ERROR, Finding

#: Every collection-wide variable and what it is; a variable of another name is a typing error.
VARIABLES: dict[str, str] = {
    "specdec_hosts": "Pattern of the hosts that the playbooks work on.",
    "specdec_root": "Directory on the host that holds everything.",
    "specdec_pins_dir": "Directory on the controller that holds locks and overlay bundles.",
    "specdec_pins_update": "Kinds of pins (overlay, lock) that a deploy makes anew although it has them.",
    "specdec_pins": "Versions that differ from the stack's.",
    "specdec_host_pins": "The same of one host, merged over specdec_pins.",
    "specdec_extra_packages": "Packages installed besides the engine's own.",
    "specdec_wheel_directories": "Directories on the controller that hold wheels.",
    "specdec_wheelhouse": "Directory on the controller that all packages come from, so that no index is asked.",
    "specdec_exclude_newer": "Date after which the index's releases are not looked at.",
    "specdec_instances": "The servers of a host.",
    "specdec_instance_defaults": "Options that hold for every instance that does not say otherwise.",
    "specdec_host_defaults": "The same of one host, merged over specdec_instance_defaults.",
    "specdec_hub": "Where models come from that are named by repo, and the token that reads them.",
    "specdec_network": "How controller and hosts reach package indexes and hubs: mirror, login, proxy, certificate authority.",
    "specdec_python": "Which Python environments are built with, and where it comes from.",
    "specdec_reference": "Where a reference host keeps its engine.",
    "specdec_serial": "How many hosts are switched at a time.",
    "specdec_prune_keep": "How many earlier releases per instance playbooks/prune.yml keeps.",
    "specdec_remove_instance": "The instance that playbooks/remove.yml takes off a host.",
    "specdec_remove_everything": "Whether playbooks/remove.yml takes everything off a host.",
    "specdec_remove_models": "Whether playbooks/remove.yml takes models, too.",
    "specdec_remove_confirm": "Whether playbooks/remove.yml may remove what it has shown.",
    "specdec_rollback_instance": "The instance that playbooks/rollback.yml rolls back.",
    "specdec_rollback_release": "The release that playbooks/rollback.yml goes back to.",
    "specdec_verify_against": "A host, or `hosts` for the first of the play, whose environment an audit compares with.",
    "specdec_verify_imports": "Whether an audit imports the engine of environments that were made by hand.",
    "specdec_verify_report": "Directory on the controller for what an audit found.",
    "specdec_why": "The reason that the history keeps for this deploy.",
}

#: Names that are data of the user's own, not the collection's.
VARIABLE_PREFIXES = ("specdec_demo_",)

ALGORITHM_NONE = "none"


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its type, and for a mapping its own options (None: any key); the value of a secret is never shown."""

    kind: t.Union[type, tuple[type, ...]]
    options: t.Optional[t.Mapping[str, Option]] = None
    choices: tuple[t.Any, ...] = ()
    minimum: t.Optional[float] = None
    maximum: t.Optional[float] = None
    required: bool = False
    elements: t.Optional[Option] = None
    pattern: str = ""
    words: str = ""
    secret: bool = False


_MODEL = {
    "repo": Option(str, pattern=r"\w[\w.-]*/\w[\w.-]*", words="organisation/name"),
    "revision": Option(str, pattern=r"(?!.*\.\.)\w[\w./-]*", words="a commit, tag or branch"),
    "path": Option(str, pattern=r"/.*", words="an absolute path on the host"),
    "directory": Option(str),
}

#: The options that only become arguments of the engine (data/engines.yml says which).
ENGINE_OPTIONS: dict[str, Option] = {
    "tensor_parallel": Option(int, minimum=1),
    "data_parallel": Option(int, minimum=1),
    "attention_data_parallel": Option(int, minimum=1),
    "pipeline_parallel": Option(int, minimum=1),
    "expert_parallel": Option(int, minimum=1),
    "context_length": Option(int, minimum=1),
    "memory_fraction": Option(float, minimum=0.01, maximum=1.0),
    "max_running_requests": Option(int, minimum=1),
    "max_total_tokens": Option(int, minimum=1),
    "chunked_prefill": Option(int, minimum=-1),
    "page_size": Option(int, minimum=1),
    "dtype": Option(str),
    "quantization": Option(str),
    "kv_cache_dtype": Option(str),
    "attention_backend": Option(str),
    "moe_backend": Option(str),
    "fp4_backend": Option(str),
    "trust_remote_code": Option(bool),
    "prefix_caching": Option(bool),
    "overlap": Option(bool),
    "custom_all_reduce": Option(bool),
    "cuda_graph": Option(bool),
    "cuda_graph_max_batch": Option(int, minimum=1),
    "mamba_strategy": Option(str, choices=("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy", "all", "align", "none")),
}

#: The options of one instance.
INSTANCE: dict[str, Option] = {
    "name": Option(
        str,
        required=True,
        pattern=r"(?!(?:job|recover)$)[a-z][a-z0-9-]{0,22}",
        words="lower-case letters, digits and -, at most 23, first a letter; not job or recover, whose units are there already",
    ),
    "engine": Option(
        dict,
        {
            "name": Option(str, required=True, choices=("sglang", "vllm")),
            "version": Option(str),
            "lane": Option(str),
            "lock_from": Option(str),
        },
        required=True,
    ),
    "overlays": Option(
        list,
        elements=Option(
            dict,
            {
                "reference": Option(str),
                "directory": Option(str),
                "package": Option(str, pattern=r"[a-z0-9]+(-[a-z0-9]+)*", words="a package's name, in lower case and with hyphens"),
                "binaries": Option(list, elements=Option(str)),
            },
        ),
    ),
    "model": Option(dict, _MODEL, required=True),
    "draft": Option(dict, _MODEL),
    "speculative": Option(
        dict,
        {
            "algorithm": Option(str, required=True),
            "num_draft_tokens": Option(int, minimum=1),
            "num_steps": Option(int, minimum=1),
            "topk": Option(int, minimum=1),
            "draft_window": Option(int, minimum=1),
            "draft_attention_backend": Option(str),
            "draft_tensor_parallel": Option(int, minimum=1),
            "lookup_min": Option(int, minimum=1),
            "lookup_max": Option(int, minimum=1),
        },
    ),
    "gpus": Option((str, list), elements=Option((int, str))),
    "host": Option(str),
    "port": Option(int, minimum=1, maximum=65535),
    "served_model_name": Option(str),
    "api_key": Option(str, secret=True),
    "admin_api_key": Option(str, secret=True),
    "adopt": Option(
        dict,
        {
            "unit": Option(
                str,
                required=True,
                pattern=r"(?!specdec-)[\w@:.-]+\.service",
                words="the name of a unit that was made by hand, NAME.service",
            )
        },
    ),
    "extra_args": Option(dict),
    **ENGINE_OPTIONS,
    "environment": Option(dict),
    "gate": Option(
        dict,
        {
            "acceptance_floor": Option((int, float), minimum=1.0),
            "max_tokens": Option(int, minimum=8),
            "prompts": Option(list, elements=Option(str)),
            "timeout": Option(int, minimum=1),
        },
    ),
    "service": Option(
        dict,
        {
            "sandbox": Option(str, choices=("strict", "container")),
            "start_timeout": Option(int, minimum=1),
            "stop_timeout": Option(int, minimum=1),
            "memory_max": Option(str, pattern=r"[1-9]\d*[KMGT]?", words="a size as systemd writes it, such as 512G"),
        },
    ),
    "skip_checks": Option(list, elements=Option(str)),
}


def _nearest(name: str, known: t.Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return "write %s; known are: %s" % (near[0], ", ".join(names))
    return "known are: %s" % ", ".join(names)


def _type_name(kind: t.Union[type, tuple[type, ...]]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping", bool: "true or false"}
    return " or ".join(names[k] for k in kinds)


def _is_a(value: t.Any, kind: t.Union[type, tuple[type, ...]]) -> bool:
    if isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return bool in kinds
    return isinstance(value, kind)


class _Checker:
    """Walks what was written along the table; collects what is wrong."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.findings: list[Finding] = []

    def refuse(self, id_: str, where: str, message: str, found: t.Any, expected: str, fix: str) -> None:
        self.findings.append(
            Finding(
                id="variable." + id_,
                verdict=ERROR,
                subject="%s on %s" % (where, self.host),
                message=message,
                found=found if isinstance(found, str) else repr(found),
                expected=expected,
                fix=fix,
            )
        )

    def value(self, where: str, value: t.Any, option: Option) -> None:
        shown = "a value that is not shown here" if option.secret else value
        if not _is_a(value, option.kind):
            expected = _type_name(option.kind)
            self.refuse("type", where, "is not %s" % expected, shown, expected, "give %s as %s" % (where, expected))
            return
        if option.choices and value not in option.choices:
            allowed = ", ".join(str(choice) for choice in option.choices)
            self.refuse("value", where, "is not allowed", value, allowed, "use one of: %s" % allowed)
        if option.pattern and not re.fullmatch(option.pattern, value):
            self.refuse("value", where, "is not %s" % option.words, shown, option.words, "give %s as %s" % (where, option.words))
        low, high = option.minimum, option.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = "%g or more" % low if high is None else "%g to %g" % (low or 0, high)
            self.refuse("value", where, "is out of range", value, allowed, "use a value of %s" % allowed)
        if option.elements is not None:
            for index, element in enumerate(value):
                self.value("%s[%d]" % (where, index), element, option.elements)
        if option.options is not None:
            self.mapping(where, value, option.options)

    def mapping(self, where: str, value: t.Mapping[str, t.Any], options: t.Mapping[str, Option]) -> None:
        for name in value:
            if name not in options:
                self.refuse(
                    "unknown", "%s.%s" % (where, name), "is no option", name, ", ".join(sorted(options)), _nearest(str(name), options)
                )
        for name, option in options.items():
            if value.get(name) is not None:
                self.value("%s.%s" % (where, name), value[name], option)
            elif option.required:
                self.refuse(
                    "missing", "%s.%s" % (where, name), "is not set", "nothing", _type_name(option.kind), "set %s.%s" % (where, name)
                )


def check_names(host: str, names: t.Iterable[str]) -> list[Finding]:
    """Findings for variables that begin with ``specdec_`` and are none of the collection's."""
    checker = _Checker(host)
    for name in sorted(names):
        if name.startswith("specdec_") and name not in VARIABLES and not name.startswith(VARIABLE_PREFIXES):
            checker.refuse("unknown", name, "is no variable of this collection", name, "a known name", _nearest(name, VARIABLES))
    return checker.findings


#: Type of the settings that hold for a whole host, by their name without ``specdec_``.
SETTINGS: dict[str, Option] = {
    "root": Option(str, pattern=r"/[\w./-]+", words="an absolute path of plain characters"),
    "pins_dir": Option(str),
    "pins": Option(dict),
    "host_pins": Option(dict),
    "extra_packages": Option(list, elements=Option(str)),
    "wheel_directories": Option(list, elements=Option(str)),
    "wheelhouse": Option(str),
    "exclude_newer": Option(str),
    "pins_update": Option(list, elements=Option(str, choices=("overlay", "wheel", "lock"))),
    "hub": Option(
        dict,
        {
            "endpoint": Option(str, pattern=r"https?://[^\s@?#]+", words="an address without credentials", secret=True),
            "token": Option(str, pattern=r"\S*", words="a token without blanks", secret=True),
        },
        secret=True,
    ),
    "network": Option(
        dict,
        {
            "index": Option(str, secret=True),
            "username": Option(str, secret=True),
            "password": Option(str, secret=True),
            "proxy": Option(str, secret=True),
            "no_proxy": Option(list, elements=Option(str)),
            "ca": Option(str),
        },
        secret=True,
    ),
    "python": Option((str, dict)),
    "why": Option(str),
}


def check_mapping(host: str, variable: str, value: t.Mapping[str, t.Any], options: t.Mapping[str, Option]) -> list[Finding]:
    """Findings for a variable whose options are described elsewhere."""
    checker = _Checker(host)
    checker.mapping(variable, value, options)
    return checker.findings


#: Where a file may come from: no credentials in the address, and nothing that anybody on the way may change unseen.
_ADDRESS = r"https://[^\s/@]+/\S*|http://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?/\S*|file:///\S+"
_ADDRESS_WORDS = "an https address without credentials (or one of this machine alone)"

#: What a pin may say besides its version.
PIN: dict[str, Option] = {
    "version": Option(str, pattern=r"\S+", words="a version"),
    "index": Option(str, pattern=_ADDRESS, words=_ADDRESS_WORDS),
    "url": Option(str, pattern=_ADDRESS, words=_ADDRESS_WORDS),
    "sha256": Option(str, pattern=r"[0-9a-f]{64}", words="a sha256 of 64 hexadecimal digits"),
    "git": Option(
        str,
        pattern=r"https://[^\s/@]+/\S+|ssh://\S+|\w[\w.-]*@[\w.-]+:\S+|file:///\S+",
        words="the address of a repository, without a password",
    ),
    "commit": Option(str, pattern=r"[0-9a-f]{40}", words="a commit of 40 hexadecimal digits"),
    "build_host": Option(str),
    "subdirectory": Option(str, pattern=r"(?!.*\.\.)\w[\w./-]*", words="a path inside the repository"),
    "environment": Option(dict),
}

#: What says where a pin comes from → what goes with it, and what may.
_PIN_SOURCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "index": (("version",), ()),
    "url": (("sha256",), ()),
    "git": (("commit", "build_host"), ("subdirectory", "environment")),
}


def check_settings(host: str, settings: t.Mapping[str, t.Any], hosts: t.Optional[t.Collection[str]] = None) -> list[Finding]:
    """Findings for the settings of a host that are of another type than they must be.

    :param hosts: names of the inventory, where they are known.
    """
    checker = _Checker(host)
    for name, option in SETTINGS.items():
        checker.value("specdec_" + name, settings.get(name), option)
    for variable in ("pins", "host_pins"):
        pins = settings.get(variable)
        for name, pin in pins.items() if isinstance(pins, t.Mapping) else ():
            _check_pin(checker, "specdec_%s.%s" % (variable, name), pin, hosts)
    return checker.findings


def _check_pin(checker: _Checker, where: str, pin: t.Any, hosts: t.Optional[t.Collection[str]]) -> None:
    if not isinstance(pin, t.Mapping):
        if isinstance(pin, float):
            expected = 'text, such as "1.10": a number loses its last zero'
            checker.refuse("type", where, "is not text", repr(pin), expected, "put the version in quotes")
        else:
            checker.value(where, pin, Option((str, int, dict)))
        return
    before = len(checker.findings)
    checker.mapping(where, pin, PIN)
    ways = [way for way in _PIN_SOURCES if pin.get(way)]
    if len(ways) != 1:
        found = ", ".join(ways) or "none of them"
        fix = "set exactly one of %s; for the default index write the version alone" % ", ".join(_PIN_SOURCES)
        checker.refuse("value", where, "needs one source", found, "one of %s" % ", ".join(_PIN_SOURCES), fix)
    if len(checker.findings) > before:
        return
    required, allowed = _PIN_SOURCES[ways[0]]
    for name in required:
        if not pin.get(name):
            checker.refuse(
                "missing", "%s.%s" % (where, name), "is not set", "nothing", PIN[name].words or "a name", "set %s.%s" % (where, name)
            )
    for name in set(pin) - {*ways, *required, *allowed}:
        fix = "take %s.%s out" % (where, name)
        checker.refuse("value", "%s.%s" % (where, name), "does not go with %s" % ways[0], name, ", ".join((*required, *allowed)), fix)
    if hosts is not None and pin.get("build_host") and pin["build_host"] not in hosts:
        near = _nearest(str(pin["build_host"]), hosts)
        checker.refuse("value", where + ".build_host", "is no host of the inventory", pin["build_host"], "a host of the inventory", near)


def merge(defaults: t.Mapping[str, t.Any], own: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """``own`` over ``defaults``; mappings merge key by key, everything else replaces."""
    merged = dict(defaults)
    for key, value in own.items():
        both = isinstance(value, t.Mapping) and isinstance(merged.get(key), t.Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def instances(host: str, wanted: t.Any, defaults: t.Any, host_defaults: t.Any = None) -> tuple[list[dict[str, t.Any]], list[Finding]]:
    """The instances of a host with their defaults, and what is wrong with them.

    :param host: inventory name, for the messages.
    :param wanted: ``specdec_instances`` as written.
    :param defaults: ``specdec_instance_defaults`` as written; :param host_defaults: ``specdec_host_defaults``, which is over it.
    :returns: the merged instances (empty when there are findings), the findings.
    """
    checker = _Checker(host)
    checker.value("specdec_instance_defaults", defaults, Option(dict))
    checker.value("specdec_host_defaults", host_defaults or {}, Option(dict))
    checker.value("specdec_instances", wanted, Option(list, elements=Option(dict)))
    if checker.findings:
        return [], checker.findings
    merged = [merge(merge(defaults, host_defaults or {}), one) for one in wanted]
    for index, one in enumerate(merged):
        name = one.get("name") if isinstance(one.get("name"), str) else str(index)
        where = "specdec_instances[%s]" % name
        checker.mapping(where, one, INSTANCE)
        if not checker.findings:
            _cross_checks(checker, where, one)
    if not checker.findings:
        _uniqueness(checker, merged)
    return ([] if checker.findings else merged), checker.findings


def origins(wanted: t.Sequence[t.Mapping[str, t.Any]], defaults: t.Any, host_defaults: t.Any = None) -> dict[str, dict[str, str]]:
    """Per instance and option (``name``, or ``name.key`` in a mapping) the variable that says it; ``instance`` where it does itself.

    :param wanted, defaults, host_defaults: as of :func:`instances`, which has found nothing wrong with them.
    """
    below = (("specdec_instance_defaults", defaults), ("specdec_host_defaults", host_defaults or {}))
    return {one["name"]: {path: name for name, layer in (*below, ("instance", one)) for path in _paths(layer)} for one in wanted}


def _paths(layer: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    for name, value in layer.items():
        yield name
        if isinstance(value, t.Mapping):
            yield from ("%s.%s" % (name, key) for key in value)


def _cross_checks(checker: _Checker, where: str, one: t.Mapping[str, t.Any]) -> None:
    for index, overlay in enumerate(one.get("overlays") or ()):
        ways = [way for way in ("reference", "directory") if overlay.get(way)]
        if len(ways) != 1:
            found = ", ".join(ways) or "none of them"
            fix = "set exactly one of reference, directory"
            checker.refuse("value", "%s.overlays[%d]" % (where, index), "needs one source", found, "one of reference, directory", fix)
    for part in ("model", "draft"):
        if one.get(part) is None:
            continue
        ways = [way for way in ("repo", "path", "directory") if one[part].get(way)]
        if len(ways) != 1:
            found = ", ".join(ways) or "none of them"
            checker.refuse(
                "value",
                "%s.%s" % (where, part),
                "needs one source",
                found,
                "one of repo, path, directory",
                "set exactly one of repo, path, directory",
            )
        if one[part].get("repo") and not one[part].get("revision"):
            checker.refuse(
                "missing",
                "%s.%s.revision" % (where, part),
                "is not set",
                "nothing",
                "a commit",
                "name the commit to serve: a moving branch cannot be rolled back",
            )
    _gpus(checker, where + ".gpus", one.get("gpus"))
    loopback = one.get("host", "127.0.0.1") in ("127.0.0.1", "::1", "localhost")
    if not loopback and not one.get("api_key"):
        checker.refuse(
            "missing",
            "%s.api_key" % where,
            "is not set, but the server listens on %s" % one["host"],
            "nothing",
            "a key of 16 characters or more",
            "set %s.api_key (from a vault), or leave host at 127.0.0.1" % where,
        )
    _secrets(checker, where, one)


def _gpus(checker: _Checker, where: str, wanted: t.Union[str, t.Sequence[t.Any], None]) -> None:
    expected = "all, none, or a list of indexes and uuids (GPU-…, MIG-…)"
    if isinstance(wanted, str) and wanted not in ("all", "none"):
        checker.refuse("value", where, "is not allowed", wanted, expected, 'write it as a list: ["%s"]' % wanted)
    elif isinstance(wanted, list):
        wrong = [str(one) for one in wanted if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", str(one))]
        if wrong or not wanted:
            checker.refuse("value", where, "names no GPU", ", ".join(wrong) or "an empty list", expected, "use nvidia-smi -L to see both")
        elif len({str(one) for one in wanted}) < len(wanted):
            checker.refuse("value", where, "names a GPU twice", ", ".join(str(one) for one in wanted), expected, "name each once")


def _secrets(checker: _Checker, where: str, one: t.Mapping[str, t.Any]) -> None:
    """Keys are long enough, protect something, and stand where they stay hidden; no value is shown."""
    for name in SECRETS:
        if one.get(name) and len(one[name]) < 16:
            checker.refuse(
                "value", "%s.%s" % (where, name), "is too short", "fewer than 16 characters", "16 or more", "use a longer random key"
            )
    if one.get("admin_api_key") and not one.get("api_key"):
        found, fix = "an admin key alone leaves completions open to everybody", "set %s.api_key, too" % where
        checker.refuse("missing", "%s.api_key" % where, "is not set, but admin_api_key is", found, "both keys", fix)
    hidden = [name.replace("_", "-") for name in SECRETS]
    for name in one.get("extra_args") or {}:
        if name.replace("_", "-") in hidden:
            fix = "set %s.%s instead: it reaches the engine as a credential" % (where, name.replace("-", "_"))
            checker.refuse(
                "value", "%s.extra_args.%s" % (where, name), "is a secret", "a value, not shown", "no secret among arguments", fix
            )
    for name in one.get("environment") or {}:
        if re.search(r"(API_KEY|TOKEN|PASSWORD|SECRET)$", name):
            fix = "leave it out: keys are options of the instance (%s), a hub's token is specdec_hub.token" % ", ".join(SECRETS)
            expected = "no secret where everybody on the host can read it"
            checker.refuse("value", "%s.environment.%s" % (where, name), "is a secret", "a value, not shown", expected, fix)


def _uniqueness(checker: _Checker, merged: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    for option in ("name", "port"):
        seen: dict[t.Any, str] = {}
        for one in merged:
            value = one.get(option, 30000 if option == "port" else None)
            if value in seen:
                checker.refuse(
                    "value",
                    "specdec_instances[%s].%s" % (one["name"], option),
                    "is used twice, also by instance %s" % seen[value],
                    value,
                    "another %s for each instance" % option,
                    "give each instance a %s of its own" % option,
                )
            seen[value] = one["name"]


#: Options whose values never leave the controller but as a file on the host.
SECRETS = ("api_key", "admin_api_key")


def secrets(merged: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, dict[str, str]]:
    """Per instance its secret options; instances without any are left out."""
    found = {one["name"]: {name: one[name] for name in SECRETS if one.get(name)} for one in merged}
    return {name: values for name, values in found.items() if values}
