"""Parts that every run uses: journal, clock, task groups, budget reservations, suspension."""
