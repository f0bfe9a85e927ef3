# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the demo's server for a completion, with the client that its users have.

usage: ask.py ADDRESS KEY_FILE PROMPT
"""

from __future__ import annotations

import pathlib
import sys

import openai


def main(address: str, key_file: str, prompt: str) -> None:
    client = openai.OpenAI(base_url="http://%s:30000/v1" % address, api_key=pathlib.Path(key_file).read_text(encoding="ascii"))
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=32, temperature=0)
    print("  asked     %r" % prompt)
    print("  answered  %r" % answer.choices[0].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
