"""Quality of a selector: what it keeps of the dense model's answers, and of the blocks a reference would choose."""
