//! The inline binary.
fn main() {}
