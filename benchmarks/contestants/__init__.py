"""One module per contestant. Each runs in an interpreter of its own and prints one line of JSON.

Peers live in venvs that hold neither msgspec nor aiohttp, so whatever these modules share
(``benchmarks.workload``, ``benchmarks.contest``) uses the standard library alone.
"""
