"""The front doors: what a user says becomes a statement, a statement is solved by the engine."""
