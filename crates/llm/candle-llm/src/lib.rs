//! The text engine on Candle: decoder models and snapshot preparers.
