"""Slow imports, done once: the ranks of ``simulate`` are forked from a server that loads what the test has loaded."""

import importlib

from launcher.testing import WHERE_LOADED

for name in WHERE_LOADED:
    importlib.import_module(name)
