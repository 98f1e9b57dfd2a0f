"""opdctl: from an experiment file to a run and back to its results; imports neither torch, verl nor ray."""
