"""Halocast: compare and plan distributed full-graph GNN training."""
