"""The chat that `retinue` opens: `Chat` is the state and the actions, `ChatApp` the screen."""
