"""`make silent-faults`: faults that raise nothing, put one by one into real short runs, and what the monitor says of them."""
