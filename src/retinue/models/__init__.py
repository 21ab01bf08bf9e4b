"""Things that answer: adapters of the port `Model`.

Nothing is imported here, because aiohttp alone costs a quarter of a second of CPU and a scripted
model needs none of it.
"""
