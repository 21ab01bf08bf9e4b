"""Short codes for links."""

import secrets

ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # nothing that looks like something else
LENGTH = 4


def new_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def is_code(text: str) -> bool:
    return len(text) == LENGTH and all(char in ALPHABET for char in text)
