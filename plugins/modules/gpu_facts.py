#!/usr/bin/python
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Read what a host is, its GPUs first
description:
  - Returns the GPUs, the driver and what stands between them and CUDA, and the Pythons, memory and system of a host.
  - Asks NVML, then C(nvidia-smi), then CUDA, then what the kernel shows. A host without a GPU, or one whose driver is broken, gives
    facts and findings, never a failure.
  - Nothing is written, installed or loaded by the module; asking CUDA lets the driver make its own device nodes.
version_added: 0.1.0
author: specdec.serving contributors (@specdec)
options:
  root:
    description:
      - Directory on the host that holds everything.
      - NVML is asked through the host program there; before that is in place, through the package C(nvidia-ml-py) of the host's Python.
    type: path
    default: /opt/specdec
attributes:
  check_mode:
    support: full
    description: Never changes anything.
  diff_mode:
    support: none
    description: There is nothing to compare.
  facts:
    support: full
    description: Returns facts.
"""

EXAMPLES = r"""
- name: Read the GPUs
  specdec.serving.gpu_facts:

- name: Stop where something stands against them
  ansible.builtin.assert:
    that: ansible_facts.specdec_host.gpus.findings | rejectattr("verdict", "in", ["ok", "warning"]) | length == 0
    fail_msg: "{{ ansible_facts.specdec_host.gpus.findings }}"
"""

RETURN = r"""
ansible_facts:
  description: Facts of the host.
  returned: always
  type: dict
  contains:
    specdec_host:
      description: What the host is.
      returned: always
      type: dict
      contains:
        os:
          description: Name, version, kernel, machine and glibc.
          returned: always
          type: dict
        memory:
          description: Bytes, C(total) and C(available); null where unknown.
          returned: always
          type: dict
        pythons:
          description: Interpreters with path, version, implementation, build, source, and whether their headers are there.
          returned: always
          type: list
          elements: dict
        gpus:
          description: GPUs and driver. What no source says is null.
          returned: always
          type: dict
          contains:
            source:
              description: Who answered. C(none) on a host without an NVIDIA GPU.
              returned: always
              type: str
              sample: nvml
            driver:
              description: Version of the loaded kernel module.
              returned: always
              type: str
              sample: "580.95.05"
            cuda:
              description: The newest CUDA that the driver supports.
              returned: always
              type: str
              sample: "13.0"
            module:
              description: The loaded kernel module, its C(version) and C(flavour) (open or proprietary); null where none is loaded.
              returned: always
              type: dict
            libraries:
              description: Per library of the driver the release in its file's name.
              returned: always
              type: dict
            devices:
              description:
                - Per GPU index, uuid, name, bus_id, compute_capability, memory in bytes (or C(memory_reason)), whether that memory is the
                  host's own (C(unified)), MIG layout, PCIe link, active NVLinks, processes that hold memory, firmware, and C(error).
              returned: always
              type: list
              elements: dict
            topology:
              description:
                - Two matrices over the devices, C(paths) (in the words of C(nvidia-smi topo)) and C(p2p). Where NVML was not asked, the
                  paths are read from PCI, C(p2p) is null, and C(reason) says why.
              returned: always
              type: dict
            upgrades:
              description: The driver's packages that are not held where upgrades run unattended; null where they do not.
              returned: always
              type: list
              elements: str
            pci:
              description: NVIDIA's display controllers on PCI and the kernel driver that holds each.
              returned: always
              type: list
              elements: dict
            nodes:
              description: Device nodes with their mode, and the error that opening them gives.
              returned: always
              type: list
              elements: dict
            container:
              description: Kind of container, whether unprivileged, whether LXC nests; null on a host of its own.
              returned: always
              type: dict
            compilers:
              description: Compilers with path and version.
              returned: always
              type: list
              elements: dict
            toolkits:
              description: CUDA toolkits, the version of their nvcc, and the names that CUDA_HOME could have.
              returned: always
              type: list
              elements: dict
            answers:
              description: The words of each source, with its return code.
              returned: always
              type: dict
            findings:
              description: What stands between the GPUs and their use, with cause and way out.
              returned: always
              type: list
              elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils import hoststate
from ansible_collections.specdec.serving.plugins.module_utils.ansiblerunner import module_runner
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/opt/specdec"}}, supports_check_mode=True)
    facts = hoststate.hardware(Layout(module.params["root"]), module_runner(module))
    module.exit_json(changed=False, ansible_facts={"specdec_host": facts})


if __name__ == "__main__":
    main()
