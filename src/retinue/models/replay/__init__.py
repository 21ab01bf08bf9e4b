"""Records the exchanges with models, and replays them."""
