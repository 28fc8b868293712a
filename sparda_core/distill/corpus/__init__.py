"""Texts of Debian and PyPI packages: fetched by the machine's own clients, checked, split by whole documents."""
