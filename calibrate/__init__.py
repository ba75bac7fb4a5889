"""Calibration: what this machine takes, measured, in place of what its spec sheets say.

measure/ times things -> points -> fit has a price per term -> constants makes a profile -> profile is its file, and a
cluster with the values in place.
"""
