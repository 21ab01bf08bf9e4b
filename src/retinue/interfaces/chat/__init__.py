"""The chat that bare `retinue` opens. `Chat` is all of it but the drawing, which needs Textual."""
