"""The plan of what is on the device in which phase of a step, from model configs and batch before anything is loaded."""
