//! The CPU bundle: every provider that runs on Candle's CPU backend.
