"""What-if studies: scenarios made of knobs, grids over them, advice."""
