"""What `sparda calibrate --device cuda` measures."""
