//! Suites that any provider, engine or server can be run through.

pub mod headers;
pub mod recipe;
