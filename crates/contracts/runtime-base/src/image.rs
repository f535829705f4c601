//! Pictures.

use crate::{Error, Result};

/// A picture: packed RGB8, row-major, no padding between rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Image {
    /// Wraps `pixels`, which must hold `width * height * 3` bytes.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Result<Self> {
        let expected = width as u64 * height as u64 * 3;
        if pixels.len() as u64 != expected || expected == 0 {
            return Err(Error::invalid(
                "image",
                format!("a {width}x{height} RGB picture has {expected} bytes, not {}", pixels.len()),
            ));
        }
        Ok(Self { width, height, pixels })
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The packed RGB8 bytes.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The packed RGB8 bytes, without a copy.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }
}
