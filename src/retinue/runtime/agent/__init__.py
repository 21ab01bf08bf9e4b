"""One agent at work: its attempts, its loop of model turns and tool calls, its conversation."""
