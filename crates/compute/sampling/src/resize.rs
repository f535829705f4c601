//! Fitting a reference picture to the size of a render.

use fast_image_resize as fir;
use gen_core::{Error, Image, Result};

/// `image` at `width` x `height`: scaled to cover the frame with a Lanczos filter, the overhang cut off evenly. A picture
/// of that size already is returned as it is.
///
/// # Errors
/// The frame is empty.
pub fn cover(image: &Image, width: u32, height: u32) -> Result<Image> {
    resize(image, (width, height), fir::FilterType::Lanczos3)
}

/// [`cover`] for a mask: with a filter that doesn't overshoot, so that black stays black.
///
/// # Errors
/// As [`cover`].
pub fn cover_mask(mask: &Image, width: u32, height: u32) -> Result<Image> {
    resize(mask, (width, height), fir::FilterType::Bilinear)
}

fn resize(image: &Image, (width, height): (u32, u32), filter: fir::FilterType) -> Result<Image> {
    if (image.width(), image.height()) == (width, height) {
        return Ok(image.clone());
    }
    let failed = |e: &dyn std::fmt::Display| Error::invalid("image", format!("can't be resized: {e}"));
    let source = fir::images::ImageRef::new(image.width(), image.height(), image.pixels(), fir::PixelType::U8x3)
        .map_err(|e| failed(&e))?;
    let mut target = fir::images::Image::new(width, height, fir::PixelType::U8x3);
    let options = fir::ResizeOptions::new()
        .resize_alg(fir::ResizeAlg::Convolution(filter))
        .fit_into_destination(Some((0.5, 0.5)));
    fir::Resizer::new().resize(&source, &mut target, &options).map_err(|e| failed(&e))?;
    Image::new(width, height, target.into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_size_is_untouched_and_another_is_cropped_in_the_middle() {
        let halves: Vec<u8> = (0..40 * 20).flat_map(|i| if i % 40 < 20 { [255, 0, 0] } else { [0, 0, 255] }).collect();
        let image = Image::new(40, 20, halves).unwrap();
        assert_eq!(cover(&image, 40, 20).unwrap(), image);
        let square = cover(&image, 10, 10).unwrap();
        let pixel = |x: usize| &square.pixels()[(5 * 10 + x) * 3..][..3];
        assert_eq!(pixel(0), [255, 0, 0]);
        assert_eq!(pixel(9), [0, 0, 255]);
    }
}
