"""SPICE, which Engram does not have."""
