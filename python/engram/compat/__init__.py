"""Drop-in modules: change the import of another package, and keep the code."""
