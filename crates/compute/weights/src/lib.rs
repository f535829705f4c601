//! Checkpoint files: inspect, identify, key plans and streaming loads.
