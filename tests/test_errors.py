from __future__ import annotations

import pickle

import pytest

from retinue import errors
from retinue.errors import (
    BudgetExceeded,
    ChainBroken,
    ModelError,
    ModelTimeout,
    ProviderError,
    RateLimited,
    RetinueError,
    RunSuspended,
    ToolFailure,
)

CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type)
    and issubclass(cls, BaseException)
    and cls.__module__ == "retinue.errors"
]

EXTRA: dict[type[BaseException], dict[str, object]] = {
    BudgetExceeded: {"limit": "max_tokens"},
    ChainBroken: {"seq": 7},
    ProviderError: {"retryable": True, "retry_after_s": 2.5},
    RunSuspended: {"run_id": "k3f9", "results": ("a result",)},
}


def build(cls: type[BaseException]) -> BaseException:
    extra: dict[str, object] = {"retry_after_s": 1.5} if issubclass(cls, ModelError) else {}
    return cls("what happened", **EXTRA.get(cls, extra))


def drawn_parents(drawing: str) -> dict[str, str | None]:
    """Each class of the docstring's tree, with the one it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    _title, *tree = drawing.splitlines()
    for line in tree:
        name = next((word for word in line.split() if word.isidentifier()), "")
        if not name:
            continue
        column = line.index(name)
        while path and path[-1][0] >= column:
            path.pop()
        parents[name] = path[-1][1] if path else None
        path.append((column, name))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    # Retinue's own classes have one base each; what hangs from Exception is drawn as a root.
    real = {
        cls.__name__: None if cls.__base__ is Exception else cls.__base__.__name__
        for cls in CLASSES
        if cls.__base__ is not None
    }

    assert drawn_parents((errors.__doc__ or "").partition("```")[0]) == real


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exception_can_be_pickled(cls: type[BaseException]) -> None:
    error = build(cls)

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is cls
    assert str(back) == "what happened"
    assert vars(back) == vars(error)


def test_tool_failure_is_no_retinue_error() -> None:
    assert not issubclass(ToolFailure, RetinueError)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ModelError("m"), False),
        (errors.ContextOverflow("m"), False),
        (RateLimited("m"), True),
        (ModelTimeout("m"), True),
        (ProviderError("m"), False),
        (ProviderError("m", retryable=True), True),
    ],
    ids=repr,
)
def test_retryable_errors(error: ModelError, retryable: bool) -> None:
    assert error.retryable is retryable


def test_one_retryable_provider_error_leaves_the_class_as_it_was() -> None:
    ProviderError("busy", retryable=True)

    assert ProviderError.retryable is False
