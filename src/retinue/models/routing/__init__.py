"""Queues, limits and pools: which endpoint is sent a request, and when."""
