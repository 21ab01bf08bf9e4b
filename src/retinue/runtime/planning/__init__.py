"""From a goal to a plan, and from a plan to steps that run."""
