"""The paper's own runtime written as a plan, and its published table as an external test."""
