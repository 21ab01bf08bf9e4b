from __future__ import annotations

import pytest

from retinue.tools.docstrings import parameter_descriptions, summary

GOOGLE = """Find flights.

    For people only.

    Args:
        origin: Airport code,
            such as FRA.
        max_price (int, optional): In euros: the most.

    Returns:
        A list.
    """
NUMPY = """
    Find flights.

    Parameters
    ----------
    origin : str
        Airport code,
        such as FRA.
    max_price : int, optional
        In euros: the most.

    Returns
    -------
    list
        of flights
    """
SPHINX = """Find flights.

    :param origin: Airport code,
        such as FRA.
    :type origin: str
    :param int max_price: In euros: the most.
    :returns: a list
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_styles(docstring: str) -> None:
    assert summary(docstring) == "Find flights."
    assert parameter_descriptions(docstring) == {
        "origin": "Airport code, such as FRA.",
        "max_price": "In euros: the most.",
    }


def test_numpy_may_describe_two_at_once() -> None:
    docstring = "Add.\n\nParameters\n----------\nx, y : int\n    A number.\n"
    assert parameter_descriptions(docstring) == {"x": "A number.", "y": "A number."}


@pytest.mark.parametrize("docstring", [None, "", "Just this.", "Note: this is no parameter."])
def test_nothing_about_parameters(docstring: str | None) -> None:
    assert parameter_descriptions(docstring) == {}
    assert summary(docstring) == (docstring or "")


def test_parameters_right_below_the_summary() -> None:
    assert summary("Add.\nArgs:\n    x: A number.\n") == "Add."
    assert summary(":param x: A number.") == ""
