"""How much CPU a child costs, beside the bare HTTP traffic it cannot avoid and beside its peers.

Run it with ``script/bench``, or ``python -m benchmarks`` from the root of the repository.
"""
