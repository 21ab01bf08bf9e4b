"""How people and programs reach retinue."""
