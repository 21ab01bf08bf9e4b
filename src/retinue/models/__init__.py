"""Models: adapters of the port `Model`.

Nothing is imported here, because aiohttp alone costs 250 ms of CPU and a scripted model does not
need it.
"""
