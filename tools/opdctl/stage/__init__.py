"""Models and data into a claim: the Job that fills it, and following that Job to its end."""
