"""Forecasts of the work of children, from what earlier agents of their roles used here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from retinue.domain.plan.forecast import Forecast, forecast
from retinue.domain.plan.plan import Plan
from retinue.domain.role import find_role
from retinue.runtime.services import Services


async def forecast_of(
    plan: Plan,
    services: Services,
    *,
    limits: Mapping[str, int | None],
    limit: int | None,
    slots: int,
    exclusive: Collection[str] = (),
) -> Forecast:
    """The likely usage of the steps of `plan`, `slots` of them at a time.

    `limits` are the tokens of each step, `limit` those of all together.
    """
    names = dict.fromkeys(step.role for step in plan.work)
    roles = {name: find_role(services.roles, name) for name in names}
    return forecast(
        plan,
        roles=roles,
        history={name: await services.storage.store.history(name) for name in names},
        limits=limits,
        limit=limit,
        price=lambda step: services.models.price(
            services.models.resolve(step.model, None)
            or roles[step.role].model
            or services.policy.model
        ),
        slots=slots,
        exclusive=exclusive,
    )
