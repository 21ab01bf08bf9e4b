"""The seccomp filter: which system calls a command may not make.

A call is allowed unless it is denied: a list of every call that compilers, test runners and
browsers need would be wrong on the next kernel. The denied calls are of no use to those programs
and would open a way out: memory of other processes, mounts, namespaces, kernel modules, io_uring
(which bypasses this filter), and socket families that a network namespace does not confine.
"""

from __future__ import annotations

import errno
import platform
import stat
import struct
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from retinue.domain.grant import Network

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _AND, _RSH, _JEQ, _JGE, _JSET = 0x20, 0x54, 0x74, 0x15, 0x35, 0x45
_RETURN, _JUMP = 0x06, 0x05
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR, _ARCH = 0, 4
_CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag
_SOCKET_TYPE, _DATAGRAM = 0xF, 2
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_F_SETLEASE, _F_SETDELEG = 1024, 1040
# The second byte of an ioctl request names its owner. These change files and folders even through a
# descriptor for reading ("f" flags, "v" and "r" attributes, "X" freezes and trims, btrfs, f2fs).
_FILE_SYSTEM_IOCTLS = (0x58, 0x66, 0x72, 0x76, 0x94, 0xF5)
AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_OPENAT2 = 437
_LINEAR_SEARCH_MAX = 3
_CREATING_FLAGS = 0o100 | 0o20000000  # O_CREAT, and O_TMPFILE without the part that is O_DIRECTORY


class Architecture(msgspec.Struct, frozen=True):
    """System call numbers of one processor architecture.

    `ipc_calls` reach memory and queues that only a namespace would confine.
    `process_calls` change a process: (call, index of the argument with the pid; 0 is oneself).
    `user_calls` change all processes of a user: (call, first argument with which it does so).
    `xattr_calls` write attributes, which no Landlock rule covers.
    `watch_calls` tell who uses which files.
    `mode_calls` set the mode of a file: (call, index of the argument that holds the mode).
    `open_calls` may create a file: (call, index of the flags; the mode is the next argument).
    `foreign_from` is where the numbers of another ABI begin.
    """

    arch: int
    denied: tuple[int, ...]
    clone: int
    clone3: int
    ioctl: int
    fcntl: int
    socket: int
    socketpair: int
    ipc_calls: tuple[int, ...]
    process_calls: tuple[tuple[int, int], ...]
    user_calls: tuple[tuple[int, int], ...]
    xattr_calls: tuple[int, ...]
    watch_calls: tuple[int, ...]
    mode_calls: tuple[tuple[int, int], ...]
    open_calls: tuple[tuple[int, int], ...]
    foreign_from: int | None = None


# The same on every architecture: io_uring_*, open_tree … fspick, pidfd_getfd, process_madvise,
# mount_setattr, quotactl_fd, memfd_secret, open_tree_attr.
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443, 447, 467)

_ARCHITECTURES = {
    "x86_64": Architecture(
        arch=0xC000003E,
        denied=(
            101,  # ptrace
            310, 311,  # process_vm_readv, process_vm_writev
            312,  # kcmp
            155, 165, 166, 161,  # pivot_root, mount, umount2, chroot
            272, 308,  # unshare, setns
            248, 249, 250,  # add_key, request_key, keyctl
            321, 298, 323,  # bpf, perf_event_open, userfaultfd
            303, 304,  # name_to_handle_at, open_by_handle_at
            175, 313, 176, 174, 178,  # modules
            246, 320, 169,  # kexec_load, kexec_file_load, reboot
            167, 168, 163, 179,  # swapon, swapoff, acct, quotactl
            164, 227, 159, 305,  # settimeofday, clock_settime, adjtimex, clock_adjtime
            170, 171, 103,  # sethostname, setdomainname, syslog
            172, 173, 154, 212, 153,  # iopl, ioperm, modify_ldt, lookup_dcookie, vhangup
            300,  # fanotify_init
            *_COMMON,
        ),
        clone=56,
        clone3=435,
        ioctl=16,
        fcntl=72,
        socket=41,
        socketpair=53,
        # shmget … shmctl, semget … semctl, msgget … msgctl, semtimedop, mq_open, mq_unlink
        ipc_calls=(29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),
        # prlimit64, sched_set{param,scheduler,affinity,attr}, setpriority, ioprio_set,
        # migrate_pages, move_pages
        process_calls=(
            (302, 0), (142, 0), (144, 0), (203, 0), (314, 0), (141, 1), (251, 1), (256, 0),
            (279, 0),
        ),
        user_calls=((141, _PRIO_USER), (251, _IOPRIO_WHO_USER)),
        # setxattr … fsetxattr, removexattr … fremovexattr, setxattrat, removexattrat, file_setattr
        xattr_calls=(188, 189, 190, 197, 198, 199, 463, 466, 469),
        watch_calls=(253, 294),  # inotify_init, inotify_init1
        # chmod, fchmod, fchmodat, fchmodat2, mknod, mknodat, creat
        mode_calls=((90, 1), (91, 1), (268, 2), (452, 2), (133, 1), (259, 2), (85, 1)),
        open_calls=((2, 1), (257, 2)),
        foreign_from=0x40000000,  # x32
    ),
    "aarch64": Architecture(
        arch=0xC00000B7,
        denied=(
            117, 270, 271, 272,  # ptrace, process_vm_readv, process_vm_writev, kcmp
            41, 40, 39, 51,  # pivot_root, mount, umount2, chroot
            97, 268,  # unshare, setns
            217, 218, 219,  # add_key, request_key, keyctl
            280, 241, 282,  # bpf, perf_event_open, userfaultfd
            264, 265,  # name_to_handle_at, open_by_handle_at
            105, 273, 106,  # modules
            104, 294, 142,  # kexec_load, kexec_file_load, reboot
            224, 225, 89, 60,  # swapon, swapoff, acct, quotactl
            170, 112, 171, 266,  # settimeofday, clock_settime, adjtimex, clock_adjtime
            161, 162, 116,  # sethostname, setdomainname, syslog
            18, 58, 262,  # lookup_dcookie, vhangup, fanotify_init
            *_COMMON,
        ),
        clone=220,
        clone3=435,
        ioctl=29,
        fcntl=25,
        socket=198,
        socketpair=199,
        ipc_calls=(194, 195, 196, 190, 191, 192, 193, 186, 187, 188, 189, 180, 181),
        process_calls=(
            (261, 0), (118, 0), (119, 0), (122, 0), (274, 0), (140, 1), (30, 1), (238, 0), (239, 0),
        ),
        user_calls=((140, _PRIO_USER), (30, _IOPRIO_WHO_USER)),
        xattr_calls=(5, 6, 7, 14, 15, 16, 463, 466, 469),
        watch_calls=(26,),
        mode_calls=((52, 1), (53, 2), (452, 2), (33, 2)),
        open_calls=((56, 2),),
    ),
}  # fmt: skip


def is_supported() -> bool:
    """Whether there is a filter for this processor."""
    return platform.machine() in _ARCHITECTURES


@cache
def build_filter(*, families: tuple[int, ...], namespaced: bool) -> bytes:
    """The filter for this processor. It allows sockets of `families` only.

    If the processes are not `namespaced`, it also denies calls that reach other processes.
    """
    architecture = _ARCHITECTURES[platform.machine()]
    return b"".join(_instructions(architecture, families, namespaced=namespaced))


def socket_families(network: Network, *, namespaced: bool) -> tuple[int, ...]:
    """The socket families that a command may use under `network`.

    In a network namespace all of these are safe: the command has a loopback of its own, and
    abstract unix sockets stay inside too. Without a namespace, a filter cannot tell a local socket
    from a remote one, so the whole family is denied.
    """
    if namespaced:
        return (AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
    if network is Network.ALL:
        # No unix sockets: abstract sockets of other programs would be reachable.
        return (_AF_INET, _AF_INET6, _AF_NETLINK)
    return ()


def _instructions(
    architecture: Architecture, families: tuple[int, ...], *, namespaced: bool
) -> Iterator[bytes]:
    yield _op(_LOAD, _ARCH)
    yield _op(_JEQ, architecture.arch, 1, 0)
    yield _op(_RETURN, _KILL)
    yield _op(_LOAD, _NR)
    if architecture.foreign_from is not None:
        yield _op(_JGE, architecture.foreign_from, 0, 1)
        yield _op(_RETURN, _KILL)
    rules = _rules(architecture, families, namespaced=namespaced)
    yield from _binary_search(sorted(rules.items()))


def _binary_search(rules: Sequence[tuple[int, Sequence[bytes]]]) -> list[bytes]:
    """Instructions that find the rule for a call by binary search.

    The kernel runs the filter for every call number when the filter is installed, and again for
    each call that is not always allowed. A linear search cost a part of a millisecond per command.
    """
    if len(rules) > _LINEAR_SEARCH_MAX:
        half = len(rules) // 2
        below, above = _binary_search(rules[:half]), _binary_search(rules[half:])
        # A conditional jump reaches 255 instructions, an unconditional one any distance.
        return [_op(_JGE, rules[half][0], 0, 1), _op(_JUMP, len(below)), *below, *above]
    found: list[bytes] = []
    for number, then in rules:
        found += (_op(_JEQ, number, 0, len(then) + 1), *then, _op(_RETURN, _ALLOW))
    return [*found, _op(_RETURN, _ALLOW)]


def _rules(
    architecture: Architecture, families: tuple[int, ...], *, namespaced: bool
) -> dict[int, list[bytes]]:
    """Instructions by call number. A call that passes them is allowed."""
    deny = _op(_RETURN, _ERRNO | errno.EPERM)
    denied = (*architecture.denied, *(() if namespaced else architecture.ipc_calls))
    rules = {number: [deny] for number in denied}
    # Arguments of clone3 and openat2 are in memory, which a filter cannot read. Programs fall back
    # to older calls.
    not_implemented = [_op(_RETURN, _ERRNO | errno.ENOSYS)]
    rules |= {architecture.clone3: not_implemented, _OPENAT2: not_implemented}
    rules[architecture.clone] = [
        _op(_LOAD, _argument(0)),
        _op(_JSET, _CLONE_NAMESPACES, 0, 1),
        deny,
    ]
    # A command must not leave a set-uid file behind: root's commands run as root.
    deny_set_user = [_op(_JSET, stat.S_ISUID | stat.S_ISGID, 0, 1), deny]
    for number, mode in architecture.mode_calls:
        rules[number] = [_op(_LOAD, _argument(mode)), *deny_set_user]
    for number, flags in architecture.open_calls:
        if_creating = [_op(_LOAD, _argument(flags)), _op(_JSET, _CREATING_FLAGS, 0, 3)]
        rules[number] = [*if_creating, _op(_LOAD, _argument(flags + 1)), *deny_set_user]
    # A program that opens a leased file waits up to a minute for the holder of the lease.
    leases = [_op(_JEQ, _F_SETLEASE, 1, 0), _op(_JEQ, _F_SETDELEG, 0, 1)]
    rules[architecture.fcntl] = [_op(_LOAD, _argument(1)), *leases, deny]
    # Comparing the lower half is enough: the kernel ignores the upper half of a request.
    injects = [_op(_JEQ, _TIOCSTI, 1, 0), _op(_JEQ, _TIOCLINUX, 0, 1)]
    rules[architecture.ioctl] = [_op(_LOAD, _argument(1)), *injects, deny]
    if not namespaced:
        rules[architecture.ioctl] += _deny_ioctl_kinds(_FILE_SYSTEM_IOCTLS)
        not_supported = [_op(_RETURN, _ERRNO | errno.EOPNOTSUPP)]
        rules |= dict.fromkeys(architecture.xattr_calls, not_supported)
        rules |= dict.fromkeys(architecture.watch_calls, not_implemented)
        for number, argument in architecture.process_calls:
            rules[number] = [_op(_LOAD, _argument(argument)), _op(_JEQ, 0, 1, 0), deny]
        for number, which in architecture.user_calls:
            rules[number] += [_op(_LOAD, _argument(0)), _op(_JEQ, which, 0, 1), deny]
    if AF_UNIX not in families:
        # A datagram socket of a pair can be connected to any named socket.
        kind = [_op(_LOAD, _argument(1)), _op(_AND, _SOCKET_TYPE)]
        rules[architecture.socketpair] = [*kind, _op(_JEQ, _DATAGRAM, 0, 1), deny]
    checks = [_op(_LOAD, _argument(0))]
    for left, family in enumerate(reversed(families)):
        # Jump behind the refusal.
        checks.insert(1, _op(_JEQ, family, left + 1, 0))
    refused = _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)
    # Only the netlink protocol that lists interfaces; others tell who runs what.
    netlink = [_op(_LOAD, _argument(0)), _op(_JEQ, _AF_NETLINK, 0, 3)]
    netlink += [_op(_LOAD, _argument(2)), _op(_JEQ, _NETLINK_ROUTE, 1, 0), refused]
    rules[architecture.socket] = [*checks, refused, *netlink]
    return rules


def _deny_ioctl_kinds(kinds: Sequence[int]) -> list[bytes]:
    """Deny an ioctl whose request, loaded before, is of one of these kinds, with ENOTTY."""
    found = [_op(_RSH, 8), _op(_AND, 0xFF)]
    for left, kind in enumerate(reversed(kinds)):
        # Jump to the refusal behind the last test, which jumps past it otherwise.
        found.insert(2, _op(_JEQ, kind, left, 0 if left else 1))
    return [*found, _op(_RETURN, _ERRNO | errno.ENOTTY)]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _argument(index: int) -> int:
    return 16 + 8 * index  # the lower half, on little-endian machines
