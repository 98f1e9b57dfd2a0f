"""The agent's environment: a read-only tool database, typed tools over it in killable processes, plans and their reward."""
