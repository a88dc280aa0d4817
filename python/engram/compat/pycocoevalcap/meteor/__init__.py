"""METEOR, which Engram does not have."""
