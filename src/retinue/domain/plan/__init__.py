"""Plans as values: steps, files, checks, forecasts, schedules, state and outcome."""
