"""From a request to a running child: orders, contracts, spawning, and the children of an agent."""
