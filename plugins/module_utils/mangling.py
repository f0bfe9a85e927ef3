# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C++ symbol names as a person reads them: the part of the Itanium ABI's mangling that functions of libraries use.

What is not known here (expressions, local names, operators that nobody exports) is left mangled; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t


def _table(text: str) -> dict[str, str]:
    return dict(pair.split(":", 1) for pair in text.split("; "))


_BUILTIN = _table(
    "v:void; w:wchar_t; b:bool; c:char; a:signed char; h:unsigned char; s:short; t:unsigned short; i:int; j:unsigned int; l:long; "
    "m:unsigned long; x:long long; y:unsigned long long; n:__int128; o:unsigned __int128; f:float; d:double; e:long double; z:...; "
    "Dn:decltype(nullptr); Di:char32_t; Ds:char16_t; Du:char8_t; Dh:half; Da:auto"
)
_STD = _table("St:std; Sa:std::allocator; Sb:std::basic_string; Ss:std::string; Si:std::istream; So:std::ostream")
_OPERATORS = _table(
    "eq:==; ne:!=; lt:<; gt:>; le:<=; ge:>=; ls:<<; rs:>>; pl:+; mi:-; ml:*; dv:/; rm:%; aS:=; pL:+=; mI:-=; ix:[]; cl:(); pt:->; "
    "de:*; ng:-; nt:!; pp:++; mm:--; an:&; or:|; eo:^; aa:&&; oo:||; nw: new; dl: delete"
)
_SUFFIX = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}
_SPECIAL = {"TV": "vtable for ", "TI": "typeinfo for ", "TS": "typeinfo name for ", "TT": "VTT for ", "GV": "guard variable for "}


@dataclasses.dataclass(frozen=True)
class Name:
    """A symbol, taken apart.

    :param name: qualified name, with template arguments.
    :param parameters: their types; None for what is no function.
    :param qualifier: `` const`` for a method that does not change its object.
    :param stem: the mangled text up to the parameters: what functions of one name have in common.
    """

    name: str
    parameters: t.Optional[tuple[str, ...]]
    stem: str
    qualifier: str = ""

    @property
    def text(self) -> str:
        """As in a declaration, without the type of the result."""
        return self.name if self.parameters is None else "%s(%s)%s" % (self.name, ", ".join(self.parameters), self.qualifier)


def demangle(symbol: str) -> str:
    """The readable form; the symbol itself where there is none."""
    parsed = parse(symbol)
    return parsed.text if parsed else symbol


def parse(symbol: str) -> t.Optional[Name]:
    """A symbol, taken apart; None where it is not C++, or not understood."""
    if not symbol.startswith("_Z"):
        return None
    try:
        return _Parser(symbol).encoding()
    except (_NotUnderstood, IndexError, RecursionError):
        return None


class _NotUnderstood(Exception):
    pass


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 2
        self.seen: list[str] = []
        self.arguments: list[str] = []
        self.const = ""

    def encoding(self) -> Name:
        prefix = _SPECIAL.get(self.text[2:4], "")
        if prefix:
            self.at = 4
            whole = self.type() if prefix.startswith(("v", "t", "V")) else self.name()[0]
            return self._done(Name(prefix + whole, None, self.text))
        name, templated = self.name()
        stem = self.text[: self.at]
        if self.at == len(self.text):
            return Name(name, None, stem)
        const = self.const
        if templated:
            self.type()  # the result's
        parameters = []
        while self.at < len(self.text) and self.text[self.at] not in ".@":
            parameters.append(self.type())
        return self._done(Name(name, () if parameters == ["void"] else tuple(parameters), stem, const))

    def _done(self, name: Name) -> Name:
        if self.at < len(self.text) and self.text[self.at] not in ".@":
            raise _NotUnderstood
        return name

    # Names

    def name(self) -> tuple[str, bool]:
        """A qualified name, and whether it is a function template's (its result type follows)."""
        if self._take("N"):
            return self._nested()
        if self._peek("S") and not self._peek("St"):
            name = self._substitution()
        else:
            name = ("std::" if self._take("St") else "") + self._unqualified("")
            if self._peek("I"):
                self.seen.append(name)
        if self._peek("I"):
            return name + self._template_arguments(), True
        return name, False

    def _nested(self) -> tuple[str, bool]:
        const = ""
        while self.text[self.at] in "KVrRO":
            const += _SUFFIX.get(self.text[self.at], "")
            self.at += 1
        name, last, templated, structor, substituted = "", "", False, False, False
        while not self._take("E"):
            if name and not substituted:
                self.seen.append(name)
            substituted = False
            if self._peek("S") and not name:
                name = self._substitution()
                substituted = True
                last = name.rpartition("::")[2]
            elif self._peek("I"):
                name += self._template_arguments()
                templated = True
            elif self._peek("T"):
                name = self._template_parameter()
            else:
                structor = self.text[self.at] in "CD"
                last = self._unqualified(last)
                name = name + "::" + last if name else last
                templated = False
        self.const = const
        # constructors have no result type
        return name, templated and not structor

    def _unqualified(self, enclosing: str) -> str:
        found = re.compile(r"\d+").match(self.text, self.at)
        if found:
            begin = found.end()
            self.at = begin + int(found[0])
            if self.at > len(self.text):
                raise _NotUnderstood
            word = self.text[begin : self.at]
            word = "(anonymous namespace)" if word.startswith("_GLOBAL__N") else word
        elif self.text[self.at] in "CD" and self.text[self.at + 1] in "0123456":
            word = ("~" if self.text[self.at] == "D" else "") + enclosing.partition("<")[0]
            self.at += 2
        elif self.text[self.at : self.at + 2] in _OPERATORS:
            word = "operator" + _OPERATORS[self.text[self.at : self.at + 2]]
            self.at += 2
        elif self._take("L"):
            return self._unqualified(enclosing)
        else:
            raise _NotUnderstood
        while self._take("B"):
            word += "[abi:%s]" % self._unqualified("")
        return word

    def _template_arguments(self) -> str:
        self.at += 1
        arguments = self._arguments()
        self.arguments = arguments
        inside = ", ".join(argument for argument in arguments if argument)
        return "<%s%s>" % (inside, " " if inside.endswith(">") else "")

    def _arguments(self) -> list[str]:
        found: list[str] = []
        while not self._take("E"):
            if self._take("J"):
                found.append(", ".join(self._arguments()))
            elif self._take("L"):
                kind = self.type()
                value, _end, _rest = self.text[self.at :].partition("E")
                self.at += len(value) + 1
                value = value.replace("n", "-")
                if not re.fullmatch(r"-?\d+", value):
                    raise _NotUnderstood
                found.append(_literal(kind, value))
            else:
                found.append(self.type())
        return found

    def _template_parameter(self) -> str:
        found = re.compile(r"T(\d*)_").match(self.text, self.at)
        if not found:
            raise _NotUnderstood
        self.at = found.end()
        return self.arguments[int(found[1]) + 1 if found[1] else 0]

    def _substitution(self) -> str:
        short = self.text[self.at : self.at + 2]
        if short in _STD:
            self.at += 2
            return _STD[short]
        found = re.compile(r"S([0-9A-Z]*)_").match(self.text, self.at)
        if not found:
            raise _NotUnderstood
        self.at = found.end()
        return self.seen[int(found[1], 36) + 1 if found[1] else 0]

    # Types

    def type(self) -> str:
        """One type; what may be referred to later is noted, in the order that the ABI counts."""
        for length in (1, 2):
            code = self.text[self.at : self.at + length]
            if code in _BUILTIN:
                self.at += length
                return _BUILTIN[code]
        letter = self.text[self.at]
        if letter in _SUFFIX:
            self.at += 1
            # a qualifier is written behind what it qualifies, and both of them together are one type
            letters = letter
            while letter in "KV" and self.text[self.at] in "KV":
                letters += self.text[self.at]
                self.at += 1
            return self._note(_suffixed(self.type(), "".join(_SUFFIX[one] for one in reversed(letters))))
        if letter == "F":
            return self._note(self._function())
        if letter == "A":
            found = re.compile(r"A(\d+)_").match(self.text, self.at)
            if not found:
                raise _NotUnderstood
            self.at = found.end()
            return self._note("%s [%s]" % (self.type(), found[1]))
        if letter == "T":
            return self._note(self._template_parameter())
        if letter == "S" and not self._peek("St"):
            name = self._substitution()
            return self._note(name + self._template_arguments()) if self._peek("I") else name
        if letter == "N" or letter == "S" or letter.isdigit():
            outer = self.arguments
            name = self.name()[0]
            self.arguments = outer
            return self._note(name)
        raise _NotUnderstood

    def _function(self) -> str:
        self.at += 1
        result = self.type()
        parameters = []
        while not self._take("E"):
            parameters.append(self.type())
        return "%s (%s)" % (result, "" if parameters == ["void"] else ", ".join(parameters))

    def _note(self, type_: str) -> str:
        self.seen.append(type_)
        return type_

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        if found:
            self.at += len(text)
        return found


def _literal(kind: str, value: str) -> str:
    if kind == "bool":
        return {"0": "false", "1": "true"}.get(value, value)
    ending = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"}.get(kind)
    return "(%s)%s" % (kind, value) if ending is None else value + ending


def _suffixed(type_: str, suffix: str) -> str:
    """A pointer to an array or a function has its star in the middle."""
    found = re.match(r"(.*?) ((?:\(\S*[*&]+\))?)((?:\[\d+\])+|\(.*\))$", type_) if type_.endswith(("]", ")")) else None
    if found and suffix in ("*", "&", "&&") and not type_.startswith("("):
        return "%s (%s%s)%s%s" % (found[1], found[2].strip("()"), suffix, " " if found[3].startswith("[") else "", found[3])
    # references collapse
    if suffix in ("&", "&&") and type_.endswith("&"):
        return type_ if suffix == "&&" or not type_.endswith("&&") else type_[:-1]
    return type_ + suffix
