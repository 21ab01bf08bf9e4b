"""Tools from ordinary functions: what a model is told, and what the function gets."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from annotated_types import Ge, MaxLen

from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.tools.function import FunctionTool, tool


class Cabin(enum.Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


@dataclasses.dataclass
class Traveller:
    name: str
    age: int = 30


class Seat(pydantic.BaseModel):
    row: int = pydantic.Field(ge=1)
    window: bool = False


class Booking(pydantic.BaseModel):
    seat: Seat
    notes: str = ""


def properties(subject: FunctionTool[..., Any]) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(subject.spec.parameters)
    return dict(schema["properties"])


def required(subject: FunctionTool[..., Any]) -> list[str]:
    return list(msgspec.json.decode(subject.spec.parameters).get("required", []))


def test_descriptions_from_docstring_annotated_and_field() -> None:
    @tool
    def find(
        origin: str,
        target: Annotated[str, "Where to."],
        price: Annotated[int, pydantic.Field(description="In euros.", ge=1, le=900)],
        code: Annotated[str, MaxLen(3)] = "EUR",
        count: Annotated[int, Ge(1)] = 1,
        stops: int = pydantic.Field(default=2, description="The most."),
    ) -> str:
        """Find flights.

        Args:
            origin: Where from.
            target: not used, since the annotation is nearer
        """
        return f"{origin}-{target}"

    assert find.spec.description == "Find flights."
    assert properties(find) == {
        "origin": {"type": "string", "description": "Where from."},
        "target": {"type": "string", "description": "Where to."},
        "price": {"type": "integer", "description": "In euros.", "minimum": 1, "maximum": 900},
        "code": {"type": "string", "maxLength": 3},
        "count": {"type": "integer", "minimum": 1},
        "stops": {"type": "integer", "description": "The most."},
    }
    assert required(find) == ["origin", "target", "price"]


async def test_field_defaults_reach_the_function(ctx: ToolContext) -> None:
    @tool
    def many(
        stops: int = pydantic.Field(default=2),
        tags: list[str] = pydantic.Field(default_factory=list),  # noqa: B008
    ) -> list[Any]:
        return [stops, tags]

    assert (await many.run({}, ctx)).content == "[2,[]]"
    assert (await many.run({"stops": 1}, ctx)).content == "[1,[]]"


async def test_enums_optionals_dataclasses_and_pydantic_models(ctx: ToolContext) -> None:
    got: list[Any] = []

    @tool
    def book(
        cabin: Cabin,
        who: list[Traveller],
        booking: Booking,
        meal: Literal["none", "vegan"] = "none",
        spare: Seat | None = None,
    ) -> Seat:
        got.extend([cabin, who, booking, meal, spare])
        return booking.seat

    shape = properties(book)
    assert shape["cabin"] == {"enum": ["business", "economy"]}
    assert shape["booking"]["properties"]["seat"]["properties"]["row"]["minimum"] == 1
    assert shape["who"]["items"]["required"] == ["name"]
    assert required(book) == ["cabin", "who", "booking"]
    sent = {"cabin": "economy", "who": [{"name": "Ada"}], "booking": {"seat": {"row": 3}}}
    done = await book.run(sent, ctx)
    assert done.content == '{"row":3,"window":false}'
    booking = Booking(seat=Seat(row=3))
    assert got == [Cabin.ECONOMY, [Traveller("Ada")], booking, "none", None]
    await book.run({**sent, "spare": {"row": 4}}, ctx)
    assert got[-1] == Seat(row=4)


async def test_a_value_that_pydantic_refuses_is_named(ctx: ToolContext) -> None:
    @tool
    def sit(seat: Seat) -> str:
        return str(seat.row)

    with pytest.raises(ToolFailure, match=r"sit: wrong 'seat': 1 validation error for Seat"):
        await sit.run({"seat": {"row": 0}}, ctx)
