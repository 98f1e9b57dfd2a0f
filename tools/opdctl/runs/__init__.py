"""Runs as people see them: finding one, its state, metrics, tables and comparison, and ending or deleting it.

What reads the store or acts on one existing run belongs here.
"""
