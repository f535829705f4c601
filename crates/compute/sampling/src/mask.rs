//! Painting a part of a picture anew: which latent cells are held, and which pixels stay.

use gen_core::{Error, Image, Latents, Result};

/// The part of the latents that is held at a picture while the rest is sampled.
///
/// In each prediction the estimate of the clean latents is blended with the picture's, as in blended diffusion (Avrahami
/// et al. 2022). A held cell so moves along the straight line from its noise to the picture, whatever the sampler, and
/// the network sees it as noisy as the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentMask {
    clean: Latents,
    /// A weight a cell: 1 is painted anew, 0 is held.
    repaint: Vec<f32>,
}

impl LatentMask {
    /// `clean` is one row `(1, channels, height, width)`, `repaint` has one weight in `[0, 1]` a cell, row-major.
    ///
    /// # Errors
    /// The sizes don't fit, or a weight is out of range.
    pub fn new(clean: Latents, repaint: Vec<f32>) -> Result<Self> {
        let &[1, _, height, width] = clean.shape() else {
            return Err(Error::Backend(format!("latents of shape {:?} can't be masked", clean.shape())));
        };
        if repaint.len() != height * width || !repaint.iter().all(|weight| (0.0..=1.0).contains(weight)) {
            return Err(Error::Backend(format!("a mask of {} cells doesn't fit {height} x {width}", repaint.len())));
        }
        Ok(Self { clean, repaint })
    }

    /// Shape of the row that it belongs to.
    pub(crate) fn shape(&self) -> &[usize] {
        self.clean.shape()
    }

    fn weighted<'a>(&'a self, values: &'a mut [f32]) -> impl Iterator<Item = (&'a mut f32, f32, f32)> {
        let weights = self.repaint.iter().copied().cycle();
        values.iter_mut().zip(self.clean.data()).zip(weights).map(|((value, clean), weight)| (value, *clean, weight))
    }

    /// Bends the velocity predicted for `x` at `sigma` so that held cells point at the picture.
    pub(crate) fn hold(&self, velocity: &mut [f32], x: &[f32], sigma: f32) {
        for ((velocity, clean, weight), x) in self.weighted(velocity).zip(x) {
            if weight < 1.0 {
                *velocity = weight * *velocity + (1.0 - weight) * (x - clean) / sigma;
            }
        }
    }

    /// Rounds what was held to the picture itself, at the end.
    pub(crate) fn restore(&self, x: &mut [f32]) {
        self.weighted(x).filter(|(_, _, weight)| *weight == 0.0).for_each(|(x, clean, _)| *x = clean);
    }
}

/// The mask that paints what either of two masks of one size paints.
///
/// # Errors
/// Their sizes differ.
pub fn lighter(a: &Image, b: &Image) -> Result<Image> {
    if (a.width(), a.height()) != (b.width(), b.height()) {
        return Err(Error::invalid("mask", "it has another size than the mask before it"));
    }
    let pixels = a.pixels().iter().zip(b.pixels()).map(|(a, b)| *a.max(b));
    Image::new(a.width(), a.height(), pixels.collect())
}

/// White is 1, black 0; colours count by their mean.
fn brightness(pixel: &[u8]) -> u8 {
    let sum: u16 = pixel.iter().map(|value| u16::from(*value)).sum();
    ((sum + 1) / 3) as u8
}

/// The weights of a mask for latents of `height` x `width` cells: a cell is painted anew as far as any pixel in it is, so
/// that every white pixel can change. The mask is stretched over the latents.
pub fn mask_cells(mask: &Image, [height, width]: [usize; 2]) -> Vec<f32> {
    let (rows, columns) = (mask.height() as usize, mask.width() as usize);
    let span = |index: usize, cells: usize, pixels: usize| {
        let (from, to) = (index * pixels / cells, ((index + 1) * pixels).div_ceil(cells));
        from..to.max(from + 1).min(pixels)
    };
    let cell = |row: usize, column: usize| {
        let pixels = span(row, height, rows).flat_map(|y| span(column, width, columns).map(move |x| y * columns + x));
        pixels.map(|at| brightness(&mask.pixels()[3 * at..3 * at + 3])).max().unwrap_or(0)
    };
    let cells = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
    cells.map(|(row, column)| f32::from(cell(row, column)) / 255.0).collect()
}

/// `painted` where the mask is white and `base` where it is black, bit for bit; mixed in between.
///
/// # Errors
/// The three differ in size.
pub fn composite(base: &Image, painted: &Image, mask: &Image) -> Result<Image> {
    let size = |image: &Image| (image.width(), image.height());
    for (field, image) in [("image", painted), ("mask", mask)] {
        if size(image) != size(base) {
            let (has, wants) = (size(image), size(base));
            let message = format!("it is {}x{} beside a picture of {}x{}", has.0, has.1, wants.0, wants.1);
            return Err(Error::invalid(field, message));
        }
    }
    let pixels = base.pixels().chunks_exact(3).zip(painted.pixels().chunks_exact(3)).zip(mask.pixels().chunks_exact(3));
    let mixed = pixels.flat_map(|((base, painted), mask)| {
        let weight = u32::from(brightness(mask));
        let mix = |channel: usize| {
            let (base, painted) = (u32::from(base[channel]), u32::from(painted[channel]));
            ((painted * weight + base * (255 - weight) + 127) / 255) as u8
        };
        [0, 1, 2].map(mix)
    });
    Image::new(base.width(), base.height(), mixed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: u32, values: &[u8]) -> Image {
        Image::new(width, values.len() as u32 / width, values.iter().flat_map(|v| [*v; 3]).collect()).unwrap()
    }

    #[test]
    fn a_cell_is_painted_as_far_as_its_brightest_pixel() {
        let mask = grey(4, &[0, 0, 0, 51, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mask_cells(&mask, [2, 2]), [0.0, 0.2, 1.0, 0.0]);
        assert_eq!(mask_cells(&mask, [1, 1]), [1.0]);
        // Finer latents than the mask: each cell takes the pixel below it.
        assert_eq!(mask_cells(&grey(2, &[0, 255]), [1, 4]), [0.0, 0.0, 1.0, 1.0]);
        // Cells that share a pixel both take it.
        assert_eq!(mask_cells(&grey(3, &[0, 255, 0]), [1, 2]), [1.0, 1.0]);
    }

    #[test]
    fn black_keeps_and_white_takes_every_bit() {
        let all: Vec<u8> = (0..=255).collect();
        let (base, painted) = (grey(16, &all), grey(16, &all.iter().rev().copied().collect::<Vec<_>>()));
        assert_eq!(composite(&base, &painted, &grey(16, &[0; 256])).unwrap(), base);
        assert_eq!(composite(&base, &painted, &grey(16, &[255; 256])).unwrap(), painted);
        let half = composite(&grey(1, &[0]), &grey(1, &[255]), &grey(1, &[100])).unwrap();
        assert_eq!(half.pixels(), [100; 3]);
        let error = composite(&base, &painted, &grey(1, &[0])).unwrap_err().to_string();
        assert!(error.contains("1x1") && error.contains("16x16"), "{error}");
    }

    #[test]
    fn a_mask_that_does_not_fit_is_refused() {
        let row = Latents::new(vec![1, 2, 1, 2], vec![0.0; 4]).unwrap();
        assert!(LatentMask::new(row.clone(), vec![0.0, 1.0]).is_ok());
        assert!(LatentMask::new(row.clone(), vec![0.0; 4]).is_err());
        assert!(LatentMask::new(row, vec![0.0, f32::NAN]).is_err());
    }
}
