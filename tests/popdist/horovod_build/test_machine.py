import sys
import sysconfig
from pathlib import Path

import pytest

from popdist.horovod_build import facts
from tests.popdist.horovod_build.samples import GB

GCC = """c++ (Debian 12.2.0-14+deb12u1) 12.2.0
Copyright (C) 2022 Free Software Foundation, Inc.
"""
UBUNTU_GCC = """g++ (Ubuntu 13.2.0-23ubuntu4) 13.2.0
Copyright (C) 2023 Free Software Foundation, Inc.
"""
CLANG = """Debian clang version 14.0.6
Target: x86_64-pc-linux-gnu
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GCC, ("gcc", "12.2.0")),
        (UBUNTU_GCC, ("gcc", "13.2.0")),
        (CLANG, ("clang", "14.0.6")),
        ("", ("unknown", "unknown")),
    ],
)
def test_compilers_are_told_apart(text, expected):
    assert facts.compiler_version(text) == expected


def test_only_instruction_sets_that_horovod_uses_count():
    assert facts.cpu_flags("processor: 0\nflags\t\t: fpu avx avx2 f16c\n") == ("avx", "f16c")
    assert facts.cpu_flags("Features: fp asimd\n") == ()


def test_free_memory_is_what_the_kernel_calls_available():
    assert facts.meminfo_available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2048 * 1024
    assert facts.meminfo_available("") == sys.maxsize


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 16000000 kB\n")
    write(tmp_path / "proc/cpuinfo", "flags : avx\n")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_control_group_the_machine_counts(root):
    assert facts.machine(root, root).available_memory == 16_000_000 * 1024


def test_a_container_limit_counts_and_page_cache_is_free(root):
    write(root / "proc/self/cgroup", "0::/job/step\n")
    group = root / "sys/fs/cgroup/job"
    write(group / "memory.max", f"{4 * GB}\n")
    write(group / "memory.current", f"{3 * GB}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {2 * GB}\n")
    write(group / "step/memory.max", "max\n")
    assert facts.machine(root, root).available_memory == 3 * GB


def test_version_one_control_groups_count_too(root):
    write(root / "proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/docker/1\n")
    group = root / "sys/fs/cgroup/memory/docker/1"
    write(group / "memory.limit_in_bytes", f"{2 * GB}")
    write(group / "memory.usage_in_bytes", f"{GB}")
    write(group / "memory.stat", "total_inactive_file 0\n")
    assert facts.machine(root, root).available_memory == GB


def test_a_processor_quota_counts(root):
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert facts.machine(root, root).cpus == 1


def test_the_disk_is_that_of_the_first_folder_that_exists(root):
    assert facts.machine(root / "not/yet/there", root).free_disk > 0


def test_the_compiler_that_cxx_names_wins(tmp_path):
    tool = tmp_path / "my-c++"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{GCC}END\n")
    tool.chmod(0o755)
    found = facts.compiler({"CXX": str(tool), "PATH": "/usr/bin:/bin"})
    assert (found.cxx, found.version) == (str(tool), "12.2.0")


def test_no_compiler_on_path_is_none(tmp_path):
    assert facts.compiler({"PATH": str(tmp_path)}) is None
    assert facts.compiler({"PATH": str(tmp_path), "CXX": "icpx"}) is None


def test_the_interpreter_is_this_one():
    found = facts.python()
    assert found.executable == sys.executable
    assert found.packages == Path(sysconfig.get_path("platlib"))
    assert "cpython" in found.abi
