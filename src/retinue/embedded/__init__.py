"""A small real model that needs no server and no key: llama.cpp from a wheel, on loopback."""
