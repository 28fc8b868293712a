"""Speed, and the comparison of everything: measured on this machine, predicted for others."""
