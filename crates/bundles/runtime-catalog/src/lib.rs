//! The validated catalog that every bundle hands out.
