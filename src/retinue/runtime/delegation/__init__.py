"""From a request to a running child: specs, contracts, spawning, and the children of an agent."""
