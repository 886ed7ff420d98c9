"""The filter of kernel calls, as bytes; what it refuses is tried in `tests/contract/sandbox/test_walls.py`."""

from __future__ import annotations

import struct

import pytest

from workers.sandbox.local.kernel_surface import seccomp_filter

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X86_64, AARCH64 = 0xC000003E, 0xC00000B7
CALLS_X86_64 = {"read": 0, "mount": 165, "ptrace": 101, "io_uring_setup": 425, "clone": 56, "clone3": 435, "prctl": 157, "socket": 41}
CALLS_AARCH64 = {"read": 63, "mount": 40, "ptrace": 117, "io_uring_setup": 425, "clone": 220, "clone3": 435, "prctl": 167, "socket": 198}
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97


def judge(program: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """Runs the filter as the kernel would: the few instructions it is made of."""
    data = {0: number, 4: architecture, 16: argument}
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = held = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            held = data[value]
        elif code == 0x06:
            return int(value)
        else:
            is_true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += if_true if is_true else if_false


@pytest.mark.parametrize(
    ("machine", "architecture", "calls"),
    [
        ("x86_64", X86_64, CALLS_X86_64),
        ("aarch64", AARCH64, CALLS_AARCH64),
    ],
)
def test_each_machine_is_judged_by_its_own_numbers(machine: str, architecture: int, calls: dict[str, int]) -> None:
    program = seccomp_filter(machine)

    def of(name: str, argument: int = 0) -> int:
        return judge(program, architecture, calls[name], argument)

    assert of("read") == ALLOW
    assert {of(name) for name in ("mount", "ptrace", "io_uring_setup")} == {ERRNO | EPERM}
    assert of("clone3") == ERRNO | ENOSYS
    assert of("clone", 0x003D0F00) == ALLOW  # a thread, as the C library makes it
    assert {of("clone", flag) for flag in (0x10000000, 0x00020000, 0x40000000, 0x02000000)} == {ERRNO | EPERM}
    assert {of("socket", family) for family in (1, 2, 10, 16)} == {ALLOW}
    assert {of("socket", family) for family in (17, 38, 40)} == {ERRNO | EAFNOSUPPORT}
    assert judge(program, 0x40000003, calls["read"]) == ERRNO | ENOSYS  # 32 bits
    assert (of("prctl", 4), of("prctl", 38)) == (ERRNO | 0, ALLOW)  # to hide: done, it says
    assert judge(seccomp_filter(machine, may_hide=True), architecture, calls["prctl"], 4) == ALLOW


def test_numbers_of_the_other_abi_of_x86_are_no_way_round() -> None:
    assert judge(seccomp_filter("x86_64"), X86_64, 0x40000000 + 165) == ERRNO | ENOSYS


def test_a_machine_whose_numbers_are_not_known_gets_no_filter_rather_than_a_wrong_one() -> None:
    assert seccomp_filter("riscv64") == b""
