# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of wheels as the index has them, read without fetching the whole wheel.

An *excerpt* of a compiled file is an ELF file with the dynamic symbols, the dynamic section and the headers of the
device code of the real one, and nothing else: what the checks read of a library of a gigabyte fits into a few megabytes.
Excerpts and small members are kept in the user's cache.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import os
import re
import struct
import subprocess
import tempfile
import typing as t
import urllib.request
import zipfile
import zlib
from pathlib import Path

import tomllib
from elftools.elf.elffile import ELFFile

from ansible_collections.specdec.serving.plugins.module_utils import abi, fatbins, records
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec-tests"
PLATFORM = "x86_64-manylinux_2_34"
#: Of torch, what has the symbols that compiled packages take from it.
TORCH = ("libc10.so", "libc10_cuda.so", "libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so")
_BLOCK = 1 << 18
_ATTEMPTS = 4


class Wheel:
    """One version of a package on the index, for a Python on x86_64."""

    def __init__(self, name: str, version: str, python: str = "3.11") -> None:
        self.name, self.version, self.python = name, version, python
        self.kept = CACHE / ("%s-%s-%s" % (name, version, python))

    @functools.cached_property
    def url(self) -> str:
        """Where the index has the wheel; uv chooses it."""
        with tempfile.TemporaryDirectory() as scratch:
            answer = Path(scratch, "pylock.toml")
            argv = ["uv", "pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", "-o", str(answer), "-"]
            argv += ["--python-version", self.python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
            wanted = "%s==%s\n" % (self.name, self.version)
            env = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
            subprocess.run(argv, input=wanted, text=True, check=True, capture_output=True, env=env)
            wheels = tomllib.loads(answer.read_text())["packages"][0]["wheels"]
        minor = "cp" + self.python.replace(".", "") + "-"
        fits = [one["url"] for one in wheels if "x86_64" in one["url"] or "none-any" in one["url"]]
        return sorted(fits, key=lambda url: (minor in url, "abi3" in url or "none-any" in url))[-1]

    @functools.cached_property
    def archive(self) -> zipfile.ZipFile:
        """Its directory of members; their content is fetched when it is read."""
        return zipfile.ZipFile(_Ranges(self.url))

    def names(self) -> list[str]:
        """Every member."""
        return [info.filename for info in self.archive.infolist()]

    def read(self, member: str) -> bytes:
        """A member whole."""
        return self._keep(member, lambda: self.archive.read(member))

    def excerpt(self, member: str) -> bytes:
        """The excerpt of a compiled member."""

        def make() -> bytes:
            with tempfile.NamedTemporaryFile() as whole:
                self._download(member, whole)
                whole.flush()
                return excerpt(Path(whole.name))

        return self._keep(member + ".excerpt", make)

    def whole(self) -> dict[str, bytes]:
        """Every member of a small wheel, without what an installer writes itself."""
        content = self._keep("whole", lambda: b"".join(_stream(self.url, 0, t.cast("_Ranges", self.archive.fp).size)))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not re.search(r"\.dist-info/(RECORD|WHEEL|METADATA)$", name)]
            return {name: archive.read(name) for name in names if not name.endswith("/")}

    def sources(self, below: str) -> dict[str, bytes]:
        """Its Python files below a folder."""

        def make() -> bytes:
            kept = io.BytesIO()
            with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in self.names():
                    if name.startswith(below) and name.endswith(".py"):
                        archive.writestr(name, self.archive.read(name))
            return kept.getvalue()

        with zipfile.ZipFile(io.BytesIO(self._keep("sources", make))) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def excerpts(self, *members: str, rename: t.Callable[[str], t.Optional[str]] = str) -> dict[str, bytes]:
        """Excerpts of several members, by their path; see :func:`excerpt` for ``rename``."""
        found = {}
        for member in members:
            found[member] = self.excerpt(member)
            with tempfile.NamedTemporaryFile() as file:
                file.write(found[member])
                file.flush()
                found[member] = excerpt(Path(file.name), rename)
        return found

    def metadata(self) -> bytes:
        """Its METADATA."""
        return self.read("%s-%s.dist-info/METADATA" % (self.name.replace("-", "_"), self.version))

    def _keep(self, name: str, make: t.Callable[[], bytes]) -> bytes:
        path = self.kept / name.replace("/", "__")
        if not path.exists():
            content = make()
            self.kept.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.kept, delete=False) as new:
                new.write(content)
            Path(new.name).replace(path)
        return path.read_bytes()

    def _download(self, member: str, target: t.Any) -> None:
        info = self.archive.getinfo(member)
        ranges = t.cast("_Ranges", self.archive.fp)
        ranges.seek(info.header_offset)
        name, extra = struct.unpack("<26xHH", ranges.read(30))
        begin = info.header_offset + 30 + name + extra
        unpacked = zlib.decompressobj(-15)
        for block in _stream(self.url, begin, begin + info.compress_size):
            target.write(unpacked.decompress(block) if info.compress_type else block)
        target.write(unpacked.flush())


def _stream(url: str, begin: int, end: int) -> t.Iterator[bytes]:
    """Bytes of a range as they come; goes on where a connection broke."""
    broken = 0
    while begin < end:
        try:
            with _get(url, begin, end) as answer:
                while block := answer.read(_BLOCK):
                    begin += len(block)
                    yield block
        except OSError:
            broken += 1
            if broken == _ATTEMPTS:
                raise


def _get(url: str, begin: int, end: int) -> t.Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=%d-%d" % (begin, end - 1)}), timeout=60)


class _Ranges(io.RawIOBase):
    """A file on a web server that can be read from any place."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        with _get(url, 0, 1) as answer:
            self.size = int(answer.headers["Content-Range"].rpartition("/")[2])
        self.blocks: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = (0, self.at, self.size)[whence] + offset
        return self.at

    def read(self, size: int = -1) -> bytes:
        size = self.size - self.at if size < 0 else min(size, self.size - self.at)
        out = b""
        while len(out) < size:
            number, skip = divmod(self.at, _BLOCK)
            if number not in self.blocks:
                self.blocks[number] = b"".join(_stream(self.url, number * _BLOCK, min((number + 1) * _BLOCK, self.size)))
            part = self.blocks[number][skip : skip + size - len(out)]
            out += part
            self.at += len(part)
        return out


# Excerpts

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_TAG = struct.Struct("<qQ")
_NEEDED, _STRTAB, _STRSZ, _KEPT = 1, 5, 10, (1, 14, 15, 29)  # NEEDED, SONAME, RPATH, RUNPATH
_TYPES = {".dynsym": 11, ".dynstr": 3, ".dynamic": 6, ".nv_fatbin": 1, ".shstrtab": 3}


def excerpt(path: Path, rename: t.Callable[[str], t.Optional[str]] = str) -> bytes:
    """An ELF file with what the checks read of this one; addresses in it are offsets.

    :param rename: what becomes of the name of a library that it needs; None leaves it out.
    """
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        symbols = elf.get_section_by_name(".dynsym")
        strings = elf.get_section(symbols["sh_link"]).data()
        dynamic = elf.get_section_by_name(".dynamic").data()
        content = {".dynsym": symbols.data()}
        stream.seek(18)
        machine = int.from_bytes(stream.read(2), "little")
    device = {fatbins.ARCHITECTURE.unpack_from(one) + fatbins.ENTRY.unpack_from(one)[:1]: one for one in fatbins.entries(path)}
    if device:
        content[".nv_fatbin"] = _container(device.values())
    tags = []
    for tag, value in _TAG.iter_unpack(dynamic):
        name = strings[value : strings.index(b"\0", value)].decode() if tag in _KEPT else None
        name = rename(name) if name is not None and tag == _NEEDED else name
        if name is not None:
            tags.append((tag, len(strings)))
            strings += name.encode() + b"\0"
    content[".dynstr"] = strings
    content[".shstrtab"] = b"\0" + b"".join(name.encode() + b"\0" for name in _TYPES)
    return _assembled(machine, content, tags)


def _assembled(machine: int, content: dict[str, bytes], tags: t.Sequence[tuple[int, int]]) -> bytes:
    at = _HEADER.size + 2 * _PROGRAM.size
    places = {}
    for name, data in content.items():
        places[name] = (at, len(data))
        at += (len(data) + 15) // 16 * 16
    tags = [*tags, (_STRTAB, places[".dynstr"][0]), (_STRSZ, places[".dynstr"][1]), (0, 0)]
    content[".dynamic"] = b"".join(_TAG.pack(*one) for one in tags)
    places[".dynamic"] = (at, len(content[".dynamic"]))
    at += len(content[".dynamic"])
    order = [name for name in _TYPES if name in content]
    sections = [bytes(_SECTION.size)]
    for name in order:
        link = order.index(".dynstr") + 1 if name in (".dynsym", ".dynamic") else 0
        size = {".dynsym": 24, ".dynamic": 16}.get(name, 0)
        head = content[".shstrtab"].index(name.encode() + b"\0")
        sections.append(_SECTION.pack(head, _TYPES[name], 2, places[name][0], *places[name], link, 0, 8, size))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _HEADER.pack(ident, 3, machine, 1, 0, 64, at, 0, 64, 56, 2, 64, len(sections), order.index(".shstrtab") + 1)
    dynamic_at, dynamic_size = places[".dynamic"]
    programs = _PROGRAM.pack(1, 4, 0, 0, 0, at, at, 4096)
    programs += _PROGRAM.pack(2, 4, dynamic_at, dynamic_at, dynamic_at, dynamic_size, dynamic_size, 8)
    out = bytearray(header + programs)
    for name, (begin, _size) in sorted(places.items(), key=lambda one: one[1]):
        out += bytes(begin - len(out)) + content[name]
    return bytes(out + b"".join(sections))


def _container(headers: t.Iterable[bytes]) -> bytes:
    """The headers of device code, each once, without what they lead."""
    entries = b""
    for one in headers:
        kind, version, size, _payload = fatbins.ENTRY.unpack_from(one)
        entries += fatbins.ENTRY.pack(kind, version, size, 0) + one[fatbins.ENTRY.size :]
    return fatbins.CONTAINER.pack(0xBA55ED50, 1, fatbins.CONTAINER.size, len(entries)) + entries


# Wheels of parts


def write(directory: Path, name: str, version: str, files: t.Mapping[str, bytes], metadata: bytes, tag: str = "py3-none-any") -> Path:
    """A wheel that pip and uv install, with these files; the same bytes for the same content."""
    stem = "%s-%s" % (name.replace("-", "_"), version)
    info = stem + ".dist-info"
    pure = "true" if tag.endswith("-any") else "false"
    whole = {
        **files,
        info + "/METADATA": metadata,
        info + "/WHEEL": ("Wheel-Version: 1.0\nGenerator: parts\nRoot-Is-Purelib: %s\nTag: %s\n" % (pure, tag)).encode(),
    }
    rows = io.StringIO()
    record = csv.writer(rows, lineterminator="\n")
    for path, content in whole.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.writerow([path, "sha256=" + value, len(content)])
    record.writerow([info + "/RECORD", "", ""])
    whole[info + "/RECORD"] = rows.getvalue().encode()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ("%s-%s.whl" % (stem, tag))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in whole.items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), content)
    return path


# Parts in an environment


def install(directory: Path, name: str, version: str, members: t.Iterable[str]) -> Path:
    """Install excerpts of some members of a wheel into a directory."""
    wheel = Wheel(name, version)
    files = {member: wheel.excerpt(member) for member in members}
    path = write(directory / "wheels", name, version, files, wheel.metadata())
    with zipfile.ZipFile(path) as archive:
        archive.extractall(directory / "site-packages")
    return directory / "site-packages"


def judge(site_packages: Path) -> dict[str, Finding]:
    """``abi.*`` by id over what is installed."""
    found = abi.read(site_packages, records.distributions(site_packages))
    critical = {"sgl-kernel", "sglang-kernel", "torch"}
    return {one.id: one for one in abi.findings(found, critical, "EM_X86_64", "cpython-311")}
