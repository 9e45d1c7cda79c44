"""Disks on which saving ends early: killed at an operation, full, or cut off from the current."""

import errno
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from launcher.files import Disk

OPERATIONS = ("make_folder", "write", "sync", "move", "delete", "delete_folder")


def overridden(name):
    def operation(self, path, *rest):
        return self.do(name, path, *rest)

    return operation


class Watched(Disk):
    """A disk of which each operation passes through ``do``."""

    def do(self, name, *arguments):
        return getattr(Disk, name)(self, *arguments)


for each in OPERATIONS:
    setattr(Watched, each, overridden(each))


class Counting(Watched):
    """Counts the operations."""

    def __init__(self):
        self.names = []

    @property
    def count(self):
        return len(self.names)

    def do(self, name, *arguments):
        self.before(name, *arguments)
        self.names.append(name)
        super().do(name, *arguments)
        self.after()

    def before(self, name, *arguments):
        """Before operation number ``count``, from 0."""

    def after(self):
        """After ``count`` operations."""


class Killing(Counting):
    """Kills the process when so many operations are done, or right before it in the middle of the next."""

    def __init__(self, operations, halfway=False):
        super().__init__()
        self.operations, self.halfway = operations, halfway

    def before(self, name, *arguments):
        if self.count != self.operations:
            return
        if self.halfway and name == "write":
            path, content = arguments
            path.write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)


class Full(Counting):
    """Has no room from an operation on: files are cut short, folders refused."""

    def __init__(self, operations, free=None):
        super().__init__()
        self.operations, self.left = operations, free

    def before(self, name, *arguments):
        if self.count >= self.operations and name in ("write", "make_folder", "sync"):
            if name == "write":
                arguments[0].write_bytes(arguments[1][:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    def free(self, path):
        return super().free(path) if self.left is None else self.left


class FullDisk:
    """Called in a process, it leaves no room on its disk for the checkpoints of some steps."""

    def __init__(self, steps=(3, 4)):
        self.steps, self.write = [f"{step:08d}" for step in steps], Disk.write

    def __call__(self):
        def write(disk, path, content):
            if path.name == "training.pt" and any(step in path.parent.name for step in self.steps):
                self.write(disk, path, content[:10])
                raise OSError(28, os.strerror(28), str(path))
            self.write(disk, path, content)

        Disk.write = write


@dataclass
class File:
    content: bytes
    durable: bytes = b""


@dataclass
class Folder:
    names: dict = field(default_factory=dict)
    durable: dict = field(default_factory=dict)


ENDINGS = {"killed": (True, True), "unsynced is lost": (False, False), "unsynced contents are lost": (True, False)}
"""Which names and contents last that were not synced."""


class Volatile(Counting):
    """Remembers what each operation made durable: contents and names by a sync alone.

    Args:
        folder: all that is in it now is durable.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.root = taken_up(folder)
        self.outcomes = []
        self.after()

    def before(self, name, path, *rest):
        parent = self.find(path.parent)
        if name == "make_folder":
            parent.names[path.name] = Folder()
        elif name == "write":
            parent.names[path.name] = File(bytes(rest[0]))
        elif name == "move":
            self.find(rest[0].parent).names[rest[0].name] = parent.names.pop(path.name)
        elif name == "sync":
            found = self.find(path)
            found.durable = dict(found.names) if isinstance(found, Folder) else found.content
        else:
            del parent.names[path.name]

    def after(self):
        """What may be left here: all where the process is killed; where the machine is, what was synced, or more."""
        self.outcomes.append({ending: left_over(self.root, *lasts) for ending, lasts in ENDINGS.items()})

    def find(self, path):
        found = self.root
        for name in path.relative_to(self.folder).parts:
            found = found.names[name]
        return found


def taken_up(path):
    """A file or folder of which everything is durable."""
    if path.is_file():
        return File(path.read_bytes(), path.read_bytes())
    names = {inside.name: taken_up(inside) for inside in path.iterdir()}
    return Folder(names, dict(names))


def left_over(found, names_last, contents_last):
    """What is found after the crash, as nested mappings of names and contents."""
    if isinstance(found, File):
        return found.content if contents_last else found.durable
    names = found.names if names_last else found.durable
    return {name: left_over(inside, names_last, contents_last) for name, inside in names.items()}


def build(tree, path: Path):
    """Make a folder of nested mappings."""
    path.mkdir()
    for name, inside in tree.items():
        if isinstance(inside, bytes):
            (path / name).write_bytes(inside)
        else:
            build(inside, path / name)
