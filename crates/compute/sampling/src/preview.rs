//! Small pictures of latents on their way: a linear map from channels to RGB, fitted to what a VAE makes of pictures.

use crate::TorchRng;
use gen_core::{CancelFlag, Image, Latents, PreviewProjection, Result, Vae};

/// Cells of a sample picture, per side.
const CELLS: usize = 16;
/// Sides of the patches of one colour in the sample pictures, in cells; 16 is one gradient over all.
const PATCHES: [usize; 3] = [2, 4, 16];
/// Weight of the ridge that keeps channels which say nothing of colour near 0, relative to the data.
const RIDGE: f64 = 1e-4;

/// Fits the map by least squares: deterministic sample pictures go through the encoder and back, and each cell's channels
/// are set against the mean colour of the pixels that the decoder makes of it. `factor` is the pixels of a cell, per side.
///
/// # Errors
/// What the VAE gives; a VAE without an encoder can't be fitted.
pub fn fit_preview(vae: &dyn Vae, factor: usize, cancel: &CancelFlag) -> Result<PreviewProjection> {
    let mut normal = Normal::default();
    for (seed, patch) in (1..).zip(PATCHES) {
        let picture = sample_picture(seed, patch, factor)?;
        let latents = vae.encode(&picture, cancel)?.mean;
        normal.add(&latents, &vae.decode(&latents, cancel)?, factor);
    }
    Ok(normal.solve())
}

/// Patches of random colours, or one gradient between four.
fn sample_picture(seed: u64, patch: usize, factor: usize) -> Result<Image> {
    let side = CELLS * factor;
    let corners = CELLS.div_ceil(patch) + 1;
    let mut rng = TorchRng::new(seed);
    let colours: Vec<[f32; 3]> =
        (0..corners * corners).map(|_| [0; 3].map(|_| (rng.next_u32() >> 8) as f32 / (1 << 24) as f32)).collect();
    let colour = |row: usize, column: usize| colours[row * corners + column];
    let mut pixels = Vec::with_capacity(side * side * 3);
    for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
        let place = |at: usize| (at / (patch * factor), (at % (patch * factor)) as f32 / (patch * factor) as f32);
        let ((row, down), (column, right)) = (place(y), place(x));
        // Small patches have one colour each; the largest runs smoothly from corner to corner.
        let (down, right) = if patch < CELLS { (0.0, 0.0) } else { (down, right) };
        for channel in 0..3 {
            let mix = |a: f32, b: f32, share: f32| a + (b - a) * share;
            let top = mix(colour(row, column)[channel], colour(row, column + 1)[channel], right);
            let bottom = mix(colour(row + 1, column)[channel], colour(row + 1, column + 1)[channel], right);
            pixels.push((mix(top, bottom, down) * 255.0).round() as u8);
        }
    }
    Image::new(side as u32, side as u32, pixels)
}

/// Sums of the normal equations over cells; the last input is a constant 1.
#[derive(Default)]
struct Normal {
    inputs: usize,
    products: Vec<f64>,
    targets: Vec<[f64; 3]>,
    cells: f64,
}

impl Normal {
    fn add(&mut self, latents: &Latents, picture: &Image, factor: usize) {
        let &[1, channels, height, width] = latents.shape() else { return };
        self.inputs = channels + 1;
        self.products.resize(self.inputs * self.inputs, 0.0);
        self.targets.resize(self.inputs, [0.0; 3]);
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let cell = row * width + column;
            let channel = |c: usize| f64::from(latents.data()[c * height * width + cell]);
            let input: Vec<f64> = (0..channels).map(channel).chain([1.0]).collect();
            let colour = mean_colour(picture, (row * factor, column * factor), factor);
            for (i, a) in input.iter().enumerate() {
                input.iter().enumerate().for_each(|(j, b)| self.products[i * self.inputs + j] += a * b);
                (0..3).for_each(|rgb| self.targets[i][rgb] += a * colour[rgb]);
            }
            self.cells += 1.0;
        }
    }

    /// Gauss-Jordan elimination with pivots; the ridge keeps every pivot above 0.
    fn solve(mut self) -> PreviewProjection {
        let n = self.inputs;
        let ridge = RIDGE * self.cells;
        (0..n.saturating_sub(1)).for_each(|i| self.products[i * n + i] += ridge);
        for column in 0..n {
            let size = |row: &usize| self.products[row * n + column].abs();
            let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(column);
            (0..n).for_each(|j| self.products.swap(column * n + j, pivot * n + j));
            self.targets.swap(column, pivot);
            let divisor = self.products[column * n + column];
            (0..n).for_each(|j| self.products[column * n + j] /= divisor);
            self.targets[column].iter_mut().for_each(|t| *t /= divisor);
            for row in (0..n).filter(|row| *row != column) {
                let factor = self.products[row * n + column];
                (0..n).for_each(|j| self.products[row * n + j] -= factor * self.products[column * n + j]);
                let pivot_target = self.targets[column];
                self.targets[row].iter_mut().zip(pivot_target).for_each(|(t, p)| *t -= factor * p);
            }
        }
        let mut weights: Vec<[f32; 3]> = self.targets.iter().map(|t| t.map(|v| v as f32)).collect();
        let bias = weights.pop().unwrap_or_default();
        PreviewProjection { weights, bias }
    }
}

/// The mean of a square of pixels, in `[0, 1]`.
fn mean_colour(picture: &Image, (top, left): (usize, usize), side: usize) -> [f64; 3] {
    let mut sum = [0.0; 3];
    for (y, x) in (top..top + side).flat_map(|y| (left..left + side).map(move |x| (y, x))) {
        let at = 3 * (y * picture.width() as usize + x);
        let pixel = picture.pixels().get(at..at + 3).unwrap_or(&[0; 3]);
        sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    sum.map(|sum| sum / (side * side) as f64 / 255.0)
}

/// The picture of one row of latents `(1, channels, height, width)`, a pixel a cell; `None` for latents of another model.
pub fn preview_image(projection: &PreviewProjection, latents: &Latents) -> Option<Image> {
    let &[1, channels, height, width] = latents.shape() else { return None };
    if channels != projection.weights.len() {
        return None;
    }
    let cells = height * width;
    let mut pixels = Vec::with_capacity(cells * 3);
    for cell in 0..cells {
        for rgb in 0..3 {
            let channel = |c: usize| latents.data()[c * cells + cell] * projection.weights[c][rgb];
            let value = projection.bias[rgb] + (0..channels).map(channel).sum::<f32>();
            pixels.push((value.clamp(0.0, 1.0) * 255.0).round() as u8);
        }
    }
    Image::new(width as u32, height as u32, pixels).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gen_core::{Error, LatentDistribution};

    /// Four channels that are a linear map of a cell's mean colour, and one that is always 0.
    struct Linear;

    impl Vae for Linear {
        fn encode(&self, image: &Image, _: &CancelFlag) -> Result<LatentDistribution> {
            let (rows, columns) = (image.height() as usize / 4, image.width() as usize / 4);
            let mut data = vec![0.0; 5 * rows * columns];
            for cell in 0..rows * columns {
                let [r, g, b] = mean_colour(image, (cell / columns * 4, cell % columns * 4), 4).map(|v| v as f32);
                for (channel, value) in [r - g, g + 0.5, 2.0 * b, r + g + b].into_iter().enumerate() {
                    data[channel * rows * columns + cell] = value;
                }
            }
            let mean = Latents::new(vec![1, 5, rows, columns], data)?;
            Ok(LatentDistribution { std: mean.clone(), mean })
        }

        fn decode(&self, latents: &Latents, _: &CancelFlag) -> Result<Image> {
            let &[1, 5, rows, columns] = latents.shape() else { return Err(Error::Cancelled) };
            let at =
                |channel: usize, y: usize, x: usize| latents.data()[channel * rows * columns + y / 4 * columns + x / 4];
            let pixel = |y, x| {
                let (g, b) = (at(1, y, x) - 0.5, at(2, y, x) / 2.0);
                [at(0, y, x) + g, g, b].map(|v| (v * 255.0).round() as u8)
            };
            let places = (0..rows * 4).flat_map(|y| (0..columns * 4).map(move |x| (y, x)));
            Image::new(columns as u32 * 4, rows as u32 * 4, places.flat_map(|(y, x)| pixel(y, x)).collect())
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_linear_vae_is_found_exactly() {
        let projection = fit_preview(&Linear, 4, &CancelFlag::new()).unwrap();
        assert_eq!(projection, fit_preview(&Linear, 4, &CancelFlag::new()).unwrap());
        let cells: Vec<u8> = (0..64u32).flat_map(|i| [i * 4, 255 - i * 4, i * 37 % 255].map(|v| v as u8)).collect();
        let small = Image::new(8, 8, cells).unwrap();
        let large: Vec<u8> =
            (0..32 * 32).flat_map(|at| small.pixels()[3 * (at / 128 * 8 + at % 32 / 4)..][..3].to_vec()).collect();
        let latents = Linear.encode(&Image::new(32, 32, large).unwrap(), &CancelFlag::new()).unwrap().mean;
        let preview = preview_image(&projection, &latents).unwrap();
        for (got, want) in preview.pixels().iter().zip(small.pixels()) {
            assert!(got.abs_diff(*want) <= 2, "{got} is not {want}");
        }
        assert_eq!(preview_image(&projection, &Latents::new(vec![1, 4, 1, 1], vec![0.0; 4]).unwrap()), None);
    }
}
