"""An experiment's values, and Helm with the charts."""
